package pgtest

import (
	"encoding/binary"
	"errors"
)

// Codes that stand in the place of a protocol version in an untyped packet.
// https://www.postgresql.org/docs/current/protocol-message-formats.html
const (
	cancelRequestCode = 80877102
	sslRequestCode    = 80877103
	gssEncRequestCode = 80877104
)

// Message types that pgtest itself looks at. Untyped packets get small
// letters of our own that the protocol does not use for a client's messages.
const (
	TypeStartup       byte = '^' // StartupMessage, untyped on the wire
	TypeCancel        byte = '!' // CancelRequest, untyped on the wire
	typeEncryption    byte = '?' // SSLRequest or GSSENCRequest, untyped on the wire
	TypeQuery         byte = 'Q'
	TypeFunctionCall  byte = 'F'
	TypeReadyForQuery byte = 'Z'
	typeBackendKey    byte = 'K'
)

const (
	lengthSize  = 4
	headerSize  = 1 + lengthSize
	startupSize = 2 * lengthSize // length and code
)

var errFraming = errors.New("not PostgreSQL's protocol")

// segment is a piece of one message.
type segment struct {
	typ        byte
	data       []byte
	start, end bool
}

// framer cuts one direction of a connection into messages. It holds back no
// more than an incomplete header.
type framer struct {
	untyped bool   // the next message has no type byte: a client's first ones
	header  []byte // of the message that begins, while incomplete
	typ     byte   // of the message in progress
	left    int    // bytes of it still to come
}

// feed returns the segments that b completes. They are good until b changes.
func (f *framer) feed(b []byte) ([]segment, error) {
	var out []segment
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, len(b))
			f.left -= n
			out = append(out, segment{typ: f.typ, data: b[:n], end: f.left == 0})
			b = b[n:]
			continue
		}
		n := min(f.headerSize()-len(f.header), len(b))
		f.header = append(f.header, b[:n]...)
		b = b[n:]
		if len(f.header) < f.headerSize() {
			break
		}
		s, err := f.begin()
		if err != nil {
			return out, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (f *framer) headerSize() int {
	if f.untyped {
		return startupSize
	}
	return headerSize
}

// begin reads a complete header.
func (f *framer) begin() (segment, error) {
	head := f.header
	f.header = nil
	if f.untyped {
		f.left = int(binary.BigEndian.Uint32(head)) - startupSize
		switch binary.BigEndian.Uint32(head[lengthSize:]) {
		case cancelRequestCode:
			f.typ = TypeCancel
		case sslRequestCode, gssEncRequestCode:
			f.typ = typeEncryption
		default:
			f.typ = TypeStartup
			f.untyped = false
		}
	} else {
		f.typ = head[0]
		f.left = int(binary.BigEndian.Uint32(head[1:])) - lengthSize
	}
	if f.left < 0 {
		return segment{}, errFraming
	}
	return segment{typ: f.typ, data: head, start: true, end: f.left == 0}, nil
}
