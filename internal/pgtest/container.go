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
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	dockercontainer "github.com/moby/moby/api/types/container"
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
	// containerData is outside the image's volume, so that a commit of the
	// container has the data in it.
	containerData = "/pgdata"
)

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
	if c.opts.backup != nil {
		return c.opts.backup.image
	}
	if image := os.Getenv("PGLOCK_PG_IMAGE"); image != "" {
		return image
	}
	return defaultImage
}

func (c *container) setUp(ctx context.Context) error {
	var err error
	if c.dog, err = dockerWatchdog("docker rm -f -v", c.name); err != nil {
		return err
	}
	if c.docker, err = testcontainers.NewDockerClientWithOpts(ctx); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	if c.ctr, err = postgres.Run(ctx, c.image(), c.customizers(port)...); err != nil {
		return err
	}
	host, err := c.ctr.Host(ctx)
	if err != nil {
		return err
	}
	if host == "localhost" {
		host = "127.0.0.1" // the port is published there only
	}
	c.base = &url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, superuser),
		Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return c.awaitReady(ctx)
}

// dockerWatchdog removes a thing of Docker's with this process. A creation that
// was under way when we died may end a moment later.
func dockerWatchdog(command, name string) (*watchdog, error) {
	if _, err := exec.LookPath("docker"); err != nil {
		return nil, nil
	}
	// Ryuk does the same from a container, but its image may not be to be had.
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return nil, err
		}
	}
	return newWatchdog(`for wait in 0 1 3; do sleep $wait; `+command+` "$1" && break; done >/dev/null 2>&1; true`, name)
}

func (c *container) customizers(port int) []testcontainers.ContainerCustomizer {
	conf := c.opts.conf(map[string]string{"listen_addresses": "*", "hba_file": containerHBA})
	hba := strings.Join(append(c.opts.hba, "local all all trust", "host all all all trust", "host replication all all trust"), "\n") + "\n"
	file := func(path, content string) testcontainers.ContainerFile {
		return testcontainers.ContainerFile{Reader: strings.NewReader(content), ContainerFilePath: path, FileMode: 0o644}
	}
	published := network.PortBinding{HostPort: strconv.Itoa(port)}
	if host := os.Getenv("DOCKER_HOST"); host == "" || strings.HasPrefix(host, "unix:") {
		published.HostIP = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return []testcontainers.ContainerCustomizer{
		testcontainers.WithName(c.name),
		testcontainers.WithEnv(map[string]string{"PGDATA": containerData}),
		testcontainers.WithFiles(file(containerConf, conf), file(containerHBA, hba)),
		testcontainers.WithCmd("postgres", "-c", "config_file="+containerConf),
		// A port of our choice stays the same over a restart.
		testcontainers.WithHostConfigModifier(func(hc *dockercontainer.HostConfig) {
			hc.PortBindings = network.PortMap{network.MustParsePort(containerPort): {published}}
		}),
	}
}

// awaitReady polls by connecting: while the image sets itself up, its server
// listens on no port.
func (c *container) awaitReady(ctx context.Context) error {
	var last error
	err := Poll(ctx, "the server in the container", func() bool {
		conn, err := pgx.Connect(ctx, c.base.String())
		if err == nil {
			last = conn.Close(ctx)
			return true
		}
		last = err
		state, err := c.ctr.State(ctx)
		if err == nil && !state.Running {
			text, _ := c.log(ctx)
			last = fmt.Errorf("the container ended:\n%s", text)
			return true
		}
		return false
	})
	return errors.Join(err, last)
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
	err = Poll(ctx, "the container to end", func() bool {
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
