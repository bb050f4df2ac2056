package pgtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// conf is the text of postgresql.conf: what suits a throwaway server, then what
// the place where it runs needs, then what the caller has set.
func (o *options) conf(place map[string]string) string {
	settings := map[string]string{
		"max_connections": "300",
		"shared_buffers":  "32MB",
		"max_wal_size":    "256MB",
		"wal_keep_size":   "256MB", // a standby that lags must be able to catch up
		"log_line_prefix": "%m [%p] ",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"fsync":           "off",
	}
	if o.durable {
		settings["fsync"] = "on"
	}
	maps.Copy(settings, place)
	maps.Copy(settings, o.settings)
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return conf.String()
}
