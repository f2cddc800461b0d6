package supervise

import (
	"os"

	"golang.org/x/sys/unix"
)

// makeRaw switches off all processing of a pseudo-terminal: the real terminal
// behind it does that once.
func makeRaw(f *os.File) error { return setRaw(f, unix.TCGETS, unix.TCSETS) }

func setRaw(f *os.File, get, set uint) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), get)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	return unix.IoctlSetTermios(int(f.Fd()), set, t)
}
