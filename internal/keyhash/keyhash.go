package keyhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// version begins every hashed input. A new encoding needs a new one, and a new
// one must differ from this within its nine bytes or continue it with anything
// but 0, the first byte of any real length.
const version = "pglock/v1"

// stackSize is the size of the encodings that are hashed without an allocation.
const stackSize = 256

// Sum returns the lock number of key within namespace. It accepts any bytes,
// also empty, with NUL or of invalid UTF-8; which keys are legal is decided by
// its caller. It does not allocate while namespace and key have no more than
// 239 bytes together.
func Sum(namespace, key string) int64 {
	var stack [stackSize]byte
	encoded := stack[:0]
	if size := len(version) + 8 + len(namespace) + len(key); size > stackSize {
		encoded = make([]byte, 0, size)
	}
	digest := sha256.Sum256(appendEncoding(encoded, namespace, key))
	return int64(binary.BigEndian.Uint64(digest[:8])) // two's complement, as bit(64)::bigint
}

// appendEncoding appends the hashed input to b. No two pairs of namespace and
// key have the same one.
func appendEncoding(b []byte, namespace, key string) []byte {
	b = append(b, version...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(namespace)))
	b = append(b, namespace...)
	return append(b, key...)
}
