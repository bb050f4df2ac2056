package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Network is a star of network namespaces: hosts around a switch, which has a
// line to this machine's own namespace, where servers run. Black holes are
// rules of the switch, so that neither end is told anything, as on a real wire.
//
//	server 10.n.0.1 ── 10.n.0.2 switch 10.n.i.1 ── 10.n.i.2 host i
type Network struct {
	octet int    // the n above
	name  string // of the switch's namespace; those of hosts begin with it
	dog   *watchdog

	mu    sync.Mutex // guards hosts
	hosts int
}

// Host is a network namespace with an address of its own.
type Host struct {
	network *Network
	number  int
	name    string // of the namespace
}

// netScript removes every namespace whose name is $1 or begins with $1-, with
// the processes in it but us ($2), and the interfaces with it.
const netScript = `
for f in /run/netns/"$1" /run/netns/"$1"-*; do
  [ -e "$f" ] || continue
  for pid in $(ip netns pids "${f##*/}"); do [ "$pid" = "$2" ] || kill -KILL "$pid"; done
  ip netns del "${f##*/}"
done
`

// NetnsAvailable is nil where NewNetwork works: on Linux, as root, with ip and
// nft installed, in a container that may. It tries the kernel, in a namespace
// that leaves nothing.
func NetnsAvailable(ctx context.Context) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return errors.New("network namespaces need Linux and root")
	}
	for _, program := range []string{"ip", "nft", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("network namespaces: %w (Debian: apt-get install iproute2 nftables)", err)
		}
	}
	return run(ctx, nil, "unshare", "--net", "sh", "-ec", "ip link add name pgtest0 type veth peer name pgtest1; nft add table inet pgtest")
}

// NewNetwork makes a switch and its line to this machine. On success the caller
// closes it; it is gone with the process too. Otherwise nothing is left.
func NewNetwork(ctx context.Context) (*Network, error) {
	if err := NetnsAvailable(ctx); err != nil {
		return nil, err
	}
	var err error
	for range 20 {
		n := &Network{octet: 1 + rand.IntN(254)}
		n.name = "pgtest-" + strconv.Itoa(n.octet)
		if n.taken() {
			continue
		}
		// The name is also the lock on the octet: adding one that exists fails.
		if err = run(ctx, nil, "ip", "netns", "add", n.name); err != nil {
			continue
		}
		if n.dog, err = newWatchdog(netScript, n.name, strconv.Itoa(os.Getpid())); err != nil {
			return nil, errors.Join(err, run(context.WithoutCancel(ctx), nil, "ip", "netns", "del", n.name))
		}
		if err = n.wire(ctx); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		return n, nil
	}
	return nil, fmt.Errorf("network namespaces: %w", err)
}

// taken tells whether this machine has an address that ours would hide.
func (n *Network) taken() bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), fmt.Sprintf("10.%d.", n.octet)) {
			return true
		}
	}
	return false
}

// wire connects the switch to this machine and lets it pass packets on.
func (n *Network) wire(ctx context.Context) error {
	return n.script(ctx, `
		ip link add name $NET type veth peer name line netns $NET
		ip addr add 10.$N.0.1/30 dev $NET
		ip link set $NET up
		ip route add 10.$N.0.0/16 via 10.$N.0.2
		ip -n $NET addr add 10.$N.0.2/30 dev line
		ip -n $NET link set line up
		ip -n $NET link set lo up
		ip netns exec $NET sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
		ip netns exec $NET nft -f - <<-RULES
			table inet pgtest {
				chain forward { type filter hook forward priority 0; policy accept; }
			}
		RULES`)
}

// script runs shell commands; N is the octet and NET the switch's name.
func (n *Network) script(ctx context.Context, script string, env ...string) error {
	set := append([]string{"N=" + strconv.Itoa(n.octet), "NET=" + n.name}, env...)
	return run(ctx, nil, "sh", "-ec", strings.Join(set, "\n")+"\n"+script)
}

// ServerIP is this machine's address for the hosts; a server needs
// Listen(n.ServerIP()).
func (n *Network) ServerIP() string { return fmt.Sprintf("10.%d.0.1", n.octet) }

// Close removes all hosts with the processes in them. Call it once.
func (n *Network) Close() error { return n.dog.close() }

// NewHost adds a host, up to 250 of them.
func (n *Network) NewHost(ctx context.Context) (*Host, error) {
	n.mu.Lock()
	n.hosts++
	h := &Host{network: n, number: n.hosts}
	n.mu.Unlock()
	if h.number > 250 {
		return nil, errors.New("a network has at most 250 hosts")
	}
	h.name = n.name + "-" + strconv.Itoa(h.number)
	return h, h.script(ctx, `
		ip netns add $HOST
		ip link add name h$I netns $NET type veth peer name eth0 netns $HOST
		ip -n $NET addr add 10.$N.$I.1/30 dev h$I
		ip -n $NET link set h$I up
		ip -n $HOST addr add 10.$N.$I.2/30 dev eth0
		ip -n $HOST link set eth0 up
		ip -n $HOST link set lo up
		ip -n $HOST route add default via 10.$N.$I.1
		ip netns exec $NET nft -f - <<-RULES
			add chain inet pgtest from$I
			add chain inet pgtest to$I
			add rule inet pgtest forward iifname "h$I" jump from$I
			add rule inet pgtest forward oifname "h$I" jump to$I
		RULES`)
}

func (h *Host) script(ctx context.Context, script string) error {
	return h.network.script(ctx, script, "I="+strconv.Itoa(h.number), "HOST="+h.name)
}

// IP is the host's address.
func (h *Host) IP() string { return fmt.Sprintf("10.%d.%d.2", h.network.octet, h.number) }

// BlackHole drops every packet of the given directions, both if none is, from
// when it has returned until Heal. Nothing is reset or reported to either end.
func (h *Host) BlackHole(ctx context.Context, directions ...Direction) error {
	if len(directions) == 0 {
		directions = bothDirections
	}
	chains := map[Direction]string{ToServer: "from$I", ToClient: "to$I"}
	var rules strings.Builder
	for _, d := range directions {
		rules.WriteString("add rule inet pgtest " + chains[d] + " drop\n")
	}
	// One nft transaction: both directions end at the same moment.
	return h.script(ctx, "ip netns exec $NET nft -f - <<RULES\n"+rules.String()+"RULES\n")
}

// Heal lets packets through again. Connections go on when TCP sends again what
// was lost, after a pause that grows with the length of the black hole.
func (h *Host) Heal(ctx context.Context) error {
	return h.script(ctx, "ip netns exec $NET nft -f - <<RULES\nflush chain inet pgtest from$I\nflush chain inet pgtest to$I\nRULES\n")
}

// Command changes cmd to run on the host, with the same process id.
func (h *Host) Command(cmd *exec.Cmd) *exec.Cmd {
	inside := exec.Command("ip", append([]string{"netns", "exec", h.name}, append([]string{cmd.Path}, cmd.Args[1:]...)...)...)
	inside.Env, inside.Dir = cmd.Env, cmd.Dir
	return inside
}
