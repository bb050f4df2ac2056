package pglock

import (
	"encoding/binary"
	"math/bits"
)

// Hashtext returns what hashtext(text) returns in SQL, so that a lock ID can be built from it as other programs do:
//
//	PairID(42, Hashtext("invoices")) // pg_advisory_lock(42, hashtext('invoices'))
//
// PostgreSQL keeps hashtext for itself: it is not documented, it has changed in a major version before and may again, and
// on a big-endian server it returns other numbers than these:
// https://www.postgresql.org/message-id/flat/AB615962-28B4-4396-9270-AB56B08BCA8C%40justatheory.com.
// These are the numbers of PostgreSQL 8.4 and newer on a little-endian machine, for a database whose encoding is UTF8; in
// another encoding they are right for ASCII alone.
func Hashtext(text string) int32 {
	_, low := jenkinsHash(text, 0)
	return int32(low)
}

// HashtextExtended returns what hashtextextended(text, seed) returns in SQL, PostgreSQL 11 and newer. What is said of
// Hashtext holds for it too. With seed 0 its lower half is Hashtext.
func HashtextExtended(text string, seed int64) int64 {
	high, low := jenkinsHash(text, uint64(seed))
	return int64(high)<<32 | int64(low)
}

// jenkins is the state of Bob Jenkins' hash lookup3, of 2006, in the variant of PostgreSQL's hash_bytes and
// hash_bytes_extended: http://burtleburtle.net/bob/hash/doobs.html. PostgreSQL calls the words a, b and c.
type jenkins [3]uint32

// jenkinsHash returns the last two words of the state after text.
func jenkinsHash(text string, seed uint64) (b, c uint32) {
	const block = 12
	start := 0x9e3779b9 + 3923095 + uint32(len(text))
	s := jenkins{start, start, start}
	if seed != 0 { // a seed is a block before the text, but no seed is no block
		s[0] += uint32(seed >> 32)
		s[1] += uint32(seed)
		s.mix()
	}
	for ; len(text) >= block; text = text[block:] {
		s.add([]byte(text[:block]))
		s.mix()
	}
	// The rest, padded with zeroes. The lowest byte of the last word is left out: the hash has the length in its place.
	var rest [block]byte
	n := copy(rest[:8], text)
	copy(rest[9:], text[n:])
	s.add(rest[:])
	s.finish()
	return s[1], s[2]
}

// add adds a block of 12 bytes, word by word.
func (s *jenkins) add(block []byte) {
	for i := range s {
		s[i] += binary.LittleEndian.Uint32(block[4*i:])
	}
}

// mix spreads a block over the state, reversibly. Each step changes two words by the two beside them.
func (s *jenkins) mix() {
	for i, turn := range [...]int{4, 6, 8, 16, 19, 4} {
		to, next, from := &s[i%3], &s[(i+1)%3], &s[(i+2)%3]
		*to = (*to - *from) ^ bits.RotateLeft32(*from, turn)
		*from += *next
	}
}

// finish makes every bit of the state count in the words that are returned.
func (s *jenkins) finish() {
	for i, turn := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		from, to := s[(i+1)%3], &s[(i+2)%3]
		*to = (*to ^ from) - bits.RotateLeft32(from, turn)
	}
}
