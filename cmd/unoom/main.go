// Command unoom makes a training run fit its GPU.
package main

import (
	"os"

	"unoom/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
