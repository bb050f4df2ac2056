package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	defaultImage  = "postgres:17-alpine"
	containerPort = "5432/tcp"
	containerConf = "/etc/pgtest.conf"
	containerHBA  = "/etc/pgtest_hba.conf"

	// Volumes, because the container's own file system can be a slow one.
	containerData    = "/pgdata"
	containerBackups = "/pgbackups"
	containerFrom    = "/pgfrom" // another container's backups

	// dockerInterval is pollInterval for what goes through Docker.
	dockerInterval = 50 * time.Millisecond
)

// containerScript fills an empty data volume from a backup before the image's
// own entry point sees it.
const containerScript = `
if [ -n "$PGTEST_FROM" ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
	cp -a "` + containerFrom + `/$PGTEST_FROM/." "$PGDATA/"
	[ -z "$PGTEST_STANDBY" ] || : >"$PGDATA/standby.signal"
fi
exec docker-entrypoint.sh "$@"`

// container is a server in Docker.
type container struct {
	name   string
	opts   *options
	ctr    *postgres.PostgresContainer // nil until made
	docker *testcontainers.DockerClient
	dog    *watchdog // nil where there is no docker command: Ryuk reaps then
	base   *url.URL
}

// startContainer runs PGLOCK_PG_IMAGE, the default image, or a backup's.
func startContainer(ctx context.Context, o *options) (*Server, error) {
	c := &container{name: "pgtest-" + strings.ToLower(rand.Text()[:12]), opts: o}
	err := c.setUp(ctx)
	if err != nil {
		return nil, errors.Join(err, c.close(context.WithoutCancel(ctx)))
	}
	return &Server{driver: c, base: c.base}, nil
}

func (c *container) image() string {
	if image := os.Getenv("PGLOCK_PG_IMAGE"); image != "" {
		return image
	}
	return defaultImage
}

// volume has the backups that are taken of this container.
func (c *container) volume() string { return c.name + "-backups" }

func (c *container) setUp(ctx context.Context) error {
	var err error
	from := "none"
	if c.opts.backup != nil {
		from = c.opts.backup.volume
	}
	if c.dog, err = dockerWatchdog(c.name, c.volume(), from); err != nil {
		return err
	}
	if c.docker, err = testcontainers.NewDockerClientWithOpts(ctx); err != nil {
		return err
	}
	host, err := c.daemonHost(ctx)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	c.base = &url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, superuser),
		Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/postgres", RawQuery: "sslmode=disable",
	}
	if c.ctr, err = postgres.Run(ctx, c.image(), c.customizers(host, port)...); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// reapContainerScript removes container $1 and the volumes $2 and $3. A creation
// that was under way when we died may end a moment later. A volume that another
// container still uses is left to that one's watchdog.
const reapContainerScript = `
for wait in 0 1 3; do
	sleep $wait
	docker rm -f -v "$1" && docker volume rm -f "$2" && break
done >/dev/null 2>&1
docker volume rm -f "$3" >/dev/null 2>&1
true`

// dockerWatchdog is nil where there is no docker command to do it with.
func dockerWatchdog(args ...string) (*watchdog, error) {
	if path, _ := exec.LookPath("docker"); path == "" {
		return nil, nil
	}
	// Ryuk does the same from a container, but its image may not be to be had.
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return nil, err
		}
	}
	return newWatchdog(reapContainerScript, args...)
}

func (c *container) customizers(host string, port int) []testcontainers.ContainerCustomizer {
	conf := c.opts.conf(map[string]string{"listen_addresses": "*", "hba_file": containerHBA})
	hba := slices.Concat(c.opts.hba, []string{
		"local all all trust", "local replication all trust",
		"host all all all trust", "host replication all all trust", "",
	})
	file := func(path, content string) testcontainers.ContainerFile {
		return testcontainers.ContainerFile{Reader: strings.NewReader(content), ContainerFilePath: path, FileMode: 0o644}
	}
	env := map[string]string{"PGDATA": containerData, "POSTGRES_INITDB_ARGS": "--no-sync", "PGTEST_FROM": "", "PGTEST_STANDBY": ""}
	if c.opts.backup != nil {
		env["PGTEST_FROM"] = c.opts.backup.name
	}
	if c.opts.standby {
		env["PGTEST_STANDBY"] = "yes"
	}
	return []testcontainers.ContainerCustomizer{
		testcontainers.WithName(c.name),
		testcontainers.WithEnv(env),
		testcontainers.WithFiles(file(containerConf, conf), file(containerHBA, strings.Join(hba, "\n"))),
		testcontainers.WithEntrypoint("sh", "-c", containerScript, "pgtest"),
		testcontainers.WithCmd("postgres", "-c", "config_file="+containerConf),
		testcontainers.WithHostConfigModifier(func(hc *dockercontainer.HostConfig) { c.place(hc, host, port) }),
	}
}

// place publishes a port of our choice, which stays the same over a restart, on
// no more addresses than need be, and mounts the volumes.
func (c *container) place(hc *dockercontainer.HostConfig, host string, port int) {
	published := network.PortBinding{HostPort: strconv.Itoa(port)}
	if ip, err := netip.ParseAddr(host); err == nil && !remoteDaemon() {
		published.HostIP = ip
	}
	bindings := []network.PortBinding{published}
	for _, address := range c.opts.listen {
		if ip, err := netip.ParseAddr(address); err == nil {
			bindings = append(bindings, network.PortBinding{HostIP: ip, HostPort: strconv.Itoa(port)})
		}
	}
	hc.PortBindings = network.PortMap{network.MustParsePort(containerPort): bindings}
	hc.Mounts = append(
		hc.Mounts,
		mount.Mount{Type: mount.TypeVolume, Target: containerData},
		mount.Mount{Type: mount.TypeVolume, Source: c.volume(), Target: containerBackups},
	)
	if b := c.opts.backup; b != nil {
		hc.Mounts = append(hc.Mounts, mount.Mount{Type: mount.TypeVolume, Source: b.volume, Target: containerFrom, ReadOnly: true})
	}
}

// awaitReady polls by connecting: while the image sets itself up, its server
// listens on no port.
func (c *container) awaitReady(ctx context.Context) error {
	var last error
	err := pollEvery(ctx, dockerInterval, "the server in the container", func() bool {
		if last = c.tryConnect(ctx); last == nil {
			return true
		}
		state, err := c.ctr.State(ctx)
		if err == nil && !state.Running {
			text, logErr := c.log(ctx)
			last = errors.Join(fmt.Errorf("the container ended:\n%s", text), logErr)
			return true
		}
		return false
	})
	return errors.Join(err, last)
}

func (c *container) tryConnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.base.String())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (c *container) start(ctx context.Context) error {
	if err := c.ctr.Start(ctx); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// stop is a fast shutdown, which Docker's own stop is only with an image that
// says so.
func (c *container) stop(ctx context.Context) error {
	return c.end(ctx, "SIGINT")
}

func (c *container) kill(ctx context.Context) error {
	return c.end(ctx, "SIGKILL")
}

func (c *container) end(ctx context.Context, signal string) error {
	state, err := c.ctr.State(ctx)
	if err != nil || !state.Running {
		return err
	}
	if _, err := c.docker.ContainerKill(ctx, c.name, client.ContainerKillOptions{Signal: signal}); err != nil {
		return err
	}
	var stateErr error
	err = pollEvery(ctx, dockerInterval, "the container to end", func() bool {
		state, stateErr = c.ctr.State(ctx)
		return stateErr != nil || !state.Running
	})
	return errors.Join(err, stateErr)
}

func (c *container) signal(ctx context.Context, pid int, sig syscall.Signal) error {
	_, err := c.exec(ctx, "sh", "-c", fmt.Sprintf("kill -%d %d", int(sig), pid))
	return err
}

// exec runs a program in the container and returns what it wrote.
func (c *container) exec(ctx context.Context, command ...string) ([]byte, error) {
	status, output, err := c.ctr.Exec(ctx, command, multiplexed())
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(output)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: exit status %d\n%s", strings.Join(command, " "), status, text)
	}
	return text, err
}

func (c *container) log(ctx context.Context) (string, error) {
	logs, err := c.ctr.Logs(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = logs.Close() }()
	text, err := io.ReadAll(logs)
	return string(text), err
}

func (c *container) close(ctx context.Context) error {
	var err error
	switch {
	case c.dog != nil:
		err = c.dog.close()
	case c.ctr != nil:
		err = c.ctr.Terminate(ctx)
	}
	if c.docker != nil {
		err = errors.Join(err, c.docker.Close())
	}
	return err
}
