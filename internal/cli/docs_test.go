package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"unoom/internal/i18n"
)

// documents are the texts whose commands have to exist.
func documents(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(docs, "../../README.md", "../../README.zh-CN.md")
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A command line in a document: the whole line of a ```sh block.
var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

func TestCommandsInDocumentsExist(t *testing.T) {
	for _, name := range documents(t) {
		for _, block := range shellBlock.FindAllStringSubmatch(read(t, name), -1) {
			for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
				line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
				for piece := range strings.SplitSeq(line, "|") {
					args := strings.Fields(piece)
					if len(args) > 3 && args[0] == "go" && args[2] == "./cmd/unoom" {
						args = args[2:]
						args[0] = "unoom"
					}
					if len(args) < 2 || args[0] != "unoom" {
						continue
					}
					checkCommand(t, filepath.Base(name), args[1:])
				}
			}
		}
	}
}

// checkCommand proves that the command and its flags are known; it runs nothing.
func checkCommand(t *testing.T, where string, args []string) {
	t.Helper()
	a := &app{Streams: Streams{Out: new(bytes.Buffer), Err: new(bytes.Buffer)}, msgs: i18n.Load(i18n.English)}
	root := a.rootCommand()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		t.Errorf("%s: unoom %s: %v", where, strings.Join(args, " "), err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil && !strings.Contains(err.Error(), "help requested") {
		t.Errorf("%s: unoom %s: %v", where, strings.Join(args, " "), err)
	}
}

// The two READMEs say the same things: as many headings of each level, the same
// commands.
func TestREADMEsAgree(t *testing.T) {
	en, zh := read(t, "../../README.md"), read(t, "../../README.zh-CN.md")
	heading := regexp.MustCompile(`(?m)^(#+) `)
	levels := func(s string) string {
		var b strings.Builder
		for _, m := range heading.FindAllStringSubmatch(s, -1) {
			b.WriteString(m[1] + " ")
		}
		return b.String()
	}
	if a, b := levels(en), levels(zh); a != b {
		t.Errorf("headings differ:\n%s\n%s", a, b)
	}
	commands := func(s string) string {
		var b strings.Builder
		for _, m := range shellBlock.FindAllStringSubmatch(s, -1) {
			for line := range strings.Lines(m[1]) {
				line, _, _ = strings.Cut(line, " #")
				b.WriteString(strings.TrimSpace(strings.ReplaceAll(line, " --lang zh", "")) + "\n")
			}
		}
		return b.String()
	}
	if a, b := commands(en), commands(zh); a != b {
		t.Errorf("commands differ:\n%s\nand\n%s", a, b)
	}
}
