package pgtest

import "runtime"

// Heap is what this process has in use after a collection, in bytes.
func Heap() uint64 {
	runtime.GC() //nolint:revive // what is garbage is not held
	runtime.GC() //nolint:revive // nor what finalizers have let go
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
