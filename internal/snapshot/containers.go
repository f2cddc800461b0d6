package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

var (
	gzipMagic  = []byte{0x1f, 0x8b}
	bzip2Magic = []byte("BZh")
	zipMagic   = []byte("PK\x03\x04")
	tarMagic   = []byte("ustar") // at tarMagicAt
)

// Sources: POSIX.1-2017 pax, "ustar Interchange Format".
const (
	tarMagicAt = 257
	tarBlock   = 512
)

// packers are formats that are told apart but not read.
var packers = [...]struct{ name, magic string }{
	{"xz", "\xfd7zXZ\x00"},
	{"zstd", "\x28\xb5\x2f\xfd"},
	{"7-Zip", "7z\xbc\xaf\x27\x1c"},
	{"RAR", "Rar!\x1a\x07"},
	{"LZ4", "\x04\x22\x4d\x18"},
}

// PackedWith names the program that packed a file which is not unpacked here, ""
// for none. tar is one of them where it holds no snapshot.
func PackedWith(head []byte) string {
	for _, p := range packers {
		if bytes.HasPrefix(head, []byte(p.magic)) {
			return p.name
		}
	}
	if isTar(head) {
		return "tar"
	}
	return ""
}

func isTar(head []byte) bool {
	return len(head) >= tarMagicAt+len(tarMagic) && bytes.HasPrefix(head[tarMagicAt:], tarMagic)
}

// hidden reports whether an archive's entry is a folder or what a system adds:
// __MACOSX/…, ._name, .DS_Store.
func hidden(name string) bool {
	return strings.HasSuffix(name, "/") || strings.HasPrefix(name, "__MACOSX/") || strings.HasPrefix(path.Base(name), ".")
}

// readTar reads the first file of a tar that is not hidden.
func readTar(in *bufio.Reader, around []string) (*Snapshot, error) {
	archive := tar.NewReader(in)
	for {
		entry, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, &FormatError{Msg: "tar: it has no files", Mistake: Empty}
		case err != nil:
			return nil, compressed(err, "tar")
		case entry.Typeflag != tar.TypeReg || hidden(entry.Name):
			continue
		}
		s, err := read(archive, entry.Size, append(around, "tar"))
		return s, wrongFile(err, "tar", entry.Name)
	}
}

// wrongFile says of an archive whose first file is no snapshot that it is so.
func wrongFile(err error, container, name string) error {
	if MistakeOf(err) == NotASnapshot {
		return &FormatError{Msg: fmt.Sprintf("%s: its first file, %.80q, is not a snapshot", container, name), Mistake: SeveralFiles}
	}
	return compressed(err, container)
}

// readZip reads the first file of a zip that is not hidden, which is where a
// snapshot is that somebody zipped. Checkpoints of torch.save are zips too.
func readZip(in *bufio.Reader, around []string) (*Snapshot, error) {
	for {
		entry, err := nextInZip(in)
		switch {
		case err != nil:
			return nil, err
		case checkpointEntry(entry.name):
			return nil, &FormatError{Msg: fmt.Sprintf("this is a checkpoint written by torch.save: a zip that begins with %.80q", entry.name), Mistake: Checkpoint}
		case hidden(entry.name) && entry.sized:
			if _, err := in.Discard(int(entry.packed)); err != nil {
				return nil, compressed(io.ErrUnexpectedEOF, "zip")
			}
			continue
		}
		var content io.Reader
		switch entry.method {
		case 0:
			// Stored: the pickle ends itself, and what follows is the directory.
			content = io.LimitReader(in, int64(entry.packed))
		case 8:
			content = flate.NewReader(in)
		default:
			return nil, &FormatError{Msg: fmt.Sprintf("zip: compression method %d is not known; unzip it first", entry.method), Mistake: SeveralFiles}
		}
		s, err := read(content, -1, append(around, "zip"))
		return s, wrongFile(err, "zip", entry.name)
	}
}

// A zipEntry is the header before a file in a zip.
type zipEntry struct {
	name   string
	method uint16
	packed uint32 // bytes in the zip
	sized  bool   // packed is known here, and not only behind the file
}

// nextInZip reads the header of the next file.
// Source of the layout: APPNOTE.TXT 6.3.10, 4.3.7.
func nextInZip(in *bufio.Reader) (zipEntry, error) {
	cut := &FormatError{Msg: "zip: the file ends in a header", Mistake: CutOff}
	var head [30]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return zipEntry{}, cut
	}
	if !bytes.HasPrefix(head[:], zipMagic) {
		return zipEntry{}, &FormatError{Msg: "zip: it has no files", Mistake: Empty}
	}
	name := make([]byte, binary.LittleEndian.Uint16(head[26:]))
	if _, err := io.ReadFull(in, name); err != nil {
		return zipEntry{}, cut
	}
	if _, err := in.Discard(int(binary.LittleEndian.Uint16(head[28:]))); err != nil {
		return zipEntry{}, cut
	}
	const sizeBehind = 1 << 3
	flags := binary.LittleEndian.Uint16(head[6:])
	return zipEntry{string(name), binary.LittleEndian.Uint16(head[8:]), binary.LittleEndian.Uint32(head[18:]), flags&sizeBehind == 0}, nil
}

// checkpointEntry reports whether a zip's entry is one that torch.save writes:
// NAME/data.pkl first, TorchScript NAME/constants.pkl or NAME/code/…; all of them
// NAME/version, .format_version, .data/….
func checkpointEntry(name string) bool {
	if _, rest, ok := strings.Cut(name, "/"); ok {
		for _, own := range []string{"data.pkl", "constants.pkl", "version", "byteorder", ".format_version", ".storage_alignment", ".data", "data/", "code/"} {
			if strings.HasPrefix(rest, own) {
				return true
			}
		}
	}
	return false
}
