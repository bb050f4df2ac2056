package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
)

// machine is where a run was made.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Memory string `json:"memory"`
}

func thisMachine() machine {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		return string(text)
	}
	cpu := lineAfter(read("/proc/cpuinfo"), "model name")
	return machine{
		CPU: trimColon(cpu), Cores: runtime.NumCPU(), Kernel: lineAfter(read("/proc/sys/kernel/osrelease"), ""),
		Memory: lineAfter(read("/proc/meminfo"), "MemTotal:"),
	}
}

func trimColon(s string) string {
	for len(s) > 0 && (s[0] == ':' || s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	return s
}

// versions adds those of Go and of the client libraries to the servers'.
func versions(servers map[string]string) map[string]string {
	servers["Go"] = runtime.Version()
	libraries := []string{
		"github.com/jackc/pgx/v5", "github.com/redis/go-redis/v9", "github.com/redis/rueidis", "github.com/bsm/redislock",
		"github.com/go-redsync/redsync/v4", "go.etcd.io/etcd/client/v3",
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if slices.Contains(libraries, dep.Path) {
				servers[dep.Path] = dep.Version
			}
		}
	}
	return servers
}
