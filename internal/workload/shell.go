package workload

import (
	"regexp"
	"strconv"
	"strings"
)

// shell is the little of a POSIX shell that launch scripts need: variables,
// arrays, quotes, simple arithmetic and tests. What it cannot know ($1 without a
// default, the output of a command) stays as it is written.
type shell struct {
	vars   map[string]string
	arrays map[string][]string
	// taken says of each if that is open whether its branch runs.
	taken []bool
	// slurm are the options of #SBATCH lines.
	slurm map[string]string
	count int // words made, bounded
}

const wordsMost = 50_000

// A launch is one simple command with the line on which it begins.
type launch struct {
	line  int
	words []string
}

var (
	assignment = regexp.MustCompile(`(?s)^(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?=)(.*)$`)
	arithmetic = regexp.MustCompile(`\$\(\(([^()]*)\)\)`)
	slurmLine  = regexp.MustCompile(`^#SBATCH\s+(-\w|--[\w-]+)[ =]*(\S*)`)
)

// run reads a script and returns the commands in it.
func (s *shell) run(text string) []launch {
	s.vars, s.arrays, s.slurm = map[string]string{}, map[string][]string{}, map[string]string{}
	var out []launch
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines) && s.count < wordsMost; i++ {
		at, line := i+1, lines[i]
		if m := slurmLine.FindStringSubmatch(line); m != nil {
			s.option(m[1], m[2])
			continue
		}
		line = withoutComment(line)
		for strings.HasSuffix(strings.TrimRight(line, " \t"), `\`) && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(strings.TrimRight(line, " \t"), `\`) + " " + strings.TrimSpace(withoutComment(lines[i]))
		}
		open := func() bool { return arrayOpen(line) || quoteOpen(line) }
		for n := 0; open() && i+1 < len(lines) && n < 400; n++ {
			i++
			more := lines[i]
			if !quoteOpen(line) {
				more = withoutComment(more)
			}
			line += "\n" + strings.TrimSuffix(strings.TrimRight(more, " \t"), `\`)
		}
		for _, part := range statements(line) {
			if l, ok := s.statement(part); ok {
				l.line = at
				out = append(out, l)
			}
		}
	}
	return out
}

// option keeps an #SBATCH option by its long name.
func (s *shell) option(name, value string) {
	long := map[string]string{"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
	if l, ok := long[name]; ok {
		name = l
	}
	s.slurm[strings.TrimPrefix(name, "--")] = value
	if name == "--nodes" {
		s.vars["SLURM_NNODES"], s.vars["SLURM_JOB_NUM_NODES"] = value, value
	}
	if n := lastNumber(value); n != "" && (name == "--gres" || name == "--gpus-per-node") {
		s.vars["SLURM_GPUS_ON_NODE"], s.vars["SLURM_GPUS_PER_NODE"] = n, n
	}
	if name == "--ntasks" {
		s.vars["SLURM_NTASKS"] = value
	}
}

// lastNumber is the number at the end of "gpu:a100:8" or "8".
func lastNumber(s string) string {
	s = s[strings.LastIndexByte(s, ':')+1:]
	if _, err := strconv.Atoi(s); err != nil {
		return ""
	}
	return s
}

// statement obeys one statement; a simple command is returned.
func (s *shell) statement(text string) (launch, bool) {
	text = strings.TrimSpace(text)
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "then", "do", "{", "(":
		text = strings.TrimSpace(rest)
	case "else":
		if n := len(s.taken); n > 0 {
			s.taken[n-1] = !s.taken[n-1]
		}
		text = strings.TrimSpace(rest)
	}
	if text == "" {
		return launch{}, false
	}
	word, rest, _ = strings.Cut(text, " ")
	switch word {
	case "if":
		s.taken = append(s.taken, s.test(rest))
		return launch{}, false
	case "elif":
		if n := len(s.taken); n > 0 {
			s.taken[n-1] = !s.taken[n-1] && s.test(rest)
		}
		return launch{}, false
	case "fi":
		if n := len(s.taken); n > 0 {
			s.taken = s.taken[:n-1]
		}
		return launch{}, false
	}
	for _, t := range s.taken {
		if !t {
			return launch{}, false
		}
	}
	if m := assignment.FindStringSubmatch(text); m != nil && s.assign(m[1], m[2] == "+=", m[3]) {
		return launch{}, false
	}
	words := s.words(text)
	return launch{words: words}, len(words) > 0
}

// assign obeys NAME=value or NAME=(a b); false if a command follows.
func (s *shell) assign(name string, add bool, value string) bool {
	value = strings.TrimSpace(value)
	if strings.HasPrefix(value, "(") && strings.HasSuffix(value, ")") {
		items := s.words(value[1 : len(value)-1])
		var flat []string
		for _, item := range items { // "--fp8-format hybrid" as one word is two
			if strings.HasPrefix(item, "--") && strings.Contains(item, " ") {
				flat = append(flat, strings.Fields(item)...)
			} else {
				flat = append(flat, item)
			}
		}
		if add {
			flat = append(s.arrays[name], flat...)
		}
		s.arrays[name] = flat
		return true
	}
	words := s.words(value)
	if len(words) > 1 && !strings.HasPrefix(strings.TrimSpace(value), `"`) && !strings.HasPrefix(value, "'") && !strings.HasPrefix(value, "$") {
		return false // VAR=x command …
	}
	v := strings.Join(words, " ")
	if strings.HasPrefix(value, `"`) && strings.Count(value, `"`) == 2 {
		v = s.expand(strings.Trim(value, `"`))
	}
	if add {
		v = s.vars[name] + v
	}
	s.vars[name] = v
	return true
}

// test decides the simple tests; one that it cannot decide holds.
func (s *shell) test(text string) bool {
	text = strings.TrimSpace(text)
	text = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, "[["), "["), "]]"), "]")
	w := s.words(text)
	switch {
	case len(w) == 3 && (w[1] == "==" || w[1] == "="):
		return w[0] == w[2]
	case len(w) == 3 && w[1] == "!=":
		return w[0] != w[2]
	case len(w) == 3 && strings.HasPrefix(w[1], "-"):
		a, errA := strconv.Atoi(w[0])
		b, errB := strconv.Atoi(w[2])
		if errA != nil || errB != nil {
			return true
		}
		return map[string]bool{"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[w[1]]
	case len(w) >= 1 && w[0] == "-z":
		return len(w) == 1 || w[1] == "" || strings.HasPrefix(w[1], "$")
	case len(w) >= 1 && w[0] == "-n":
		return len(w) == 2 && w[1] != "" && !strings.HasPrefix(w[1], "$")
	}
	return true
}

// words splits a command into its words, with variables put in.
func (s *shell) words(text string) []string {
	var out []string
	var cur strings.Builder
	have := false
	flush := func() {
		if have && s.count < wordsMost {
			out = append(out, cur.String())
			s.count++
		}
		cur.Reset()
		have = false
	}
	for i := 0; i < len(text) && s.count < wordsMost; {
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\n':
			flush()
			i++
		case c == '\\' && i+1 < len(text):
			if text[i+1] != '\n' {
				cur.WriteByte(text[i+1])
				have = true
			}
			i += 2
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				end = len(text) - i - 1
			}
			cur.WriteString(text[i+1 : i+1+end])
			have = true
			i += end + 2
		case c == '"':
			end := quoteEnd(text, i)
			inner := text[i+1 : end]
			if name, ok := arrayName(inner); ok {
				flush()
				s.array(&out, name)
			} else {
				cur.WriteString(s.expand(inner))
				have = true
			}
			i = end + 1
		case c == '$':
			end := wordEnd(text, i)
			piece := text[i:end]
			if name, ok := arrayName(piece); ok {
				flush()
				s.array(&out, name)
			} else if v := s.expand(piece); strings.ContainsAny(v, " \t\n") && v != piece && !have { // a bare variable that is known is split
				for _, w := range (&shell{vars: map[string]string{}, count: s.count}).words(v) {
					out = append(out, w)
					s.count++
				}
			} else if v != "" {
				cur.WriteString(v)
				have = true
			}
			i = max(end, i+1)
		default:
			cur.WriteByte(c)
			have = true
			i++
		}
	}
	flush()
	return out
}

func (s *shell) array(out *[]string, name string) {
	list, ok := s.arrays[name]
	if !ok {
		if v, is := s.vars[name]; is {
			list = strings.Fields(v)
		}
	}
	if len(list)+s.count > wordsMost {
		list = nil
	}
	*out = append(*out, list...)
	s.count += len(list)
}

// arrayName reads "${NAME[@]}".
func arrayName(text string) (string, bool) {
	name, ok := strings.CutPrefix(text, "${")
	if !ok {
		return "", false
	}
	for _, end := range []string{"[@]}", "[*]}"} {
		if n, ok := strings.CutSuffix(name, end); ok {
			return n, true
		}
	}
	return "", false
}

// wordEnd is the end of the variable that begins at i.
func wordEnd(text string, i int) int {
	if i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '(') {
		open, shut := text[i+1], byte('}')
		if open == '(' {
			shut = ')'
		}
		depth := 0
		for j := i + 1; j < len(text); j++ {
			switch text[j] {
			case open:
				depth++
			case shut:
				if depth--; depth == 0 {
					return j + 1
				}
			}
		}
		return len(text)
	}
	j := i + 1
	for j < len(text) && (text[j] == '_' || text[j] >= '0' && text[j] <= '9' || text[j] >= 'a' && text[j] <= 'z' || text[j] >= 'A' && text[j] <= 'Z') {
		j++
	}
	return j
}

// quoteEnd is the index of the quote that closes the one at i.
func quoteEnd(text string, i int) int {
	for j := i + 1; j < len(text); j++ {
		switch text[j] {
		case '\\':
			j++
		case '"':
			return j
		}
	}
	return len(text)
}

// expand puts in variables and arithmetic.
func (s *shell) expand(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		if text[i] != '$' {
			b.WriteByte(text[i])
			i++
			continue
		}
		end := wordEnd(text, i)
		b.WriteString(s.variable(text[i:end]))
		i = max(end, i+1)
		if b.Len() > 1<<16 {
			return b.String()
		}
	}
	return b.String()
}

// variable is the value of "$NAME", "${NAME:-default}" or "$((a * b))"; the text
// itself where it is not known.
func (s *shell) variable(text string) string {
	if m := arithmetic.FindStringSubmatch(text); m != nil {
		if v, ok := s.calculate(m[1]); ok {
			return v
		}
		return text
	}
	inner := strings.TrimPrefix(text, "$")
	if strings.HasPrefix(inner, "{") && strings.HasSuffix(inner, "}") {
		inner = inner[1 : len(inner)-1]
	}
	name, def, has := inner, "", false
	for _, sep := range []string{":-", ":=", "-"} {
		if n, d, ok := strings.Cut(inner, sep); ok && (sep != "-" || !strings.ContainsAny(n, "/%#")) {
			name, def, has = n, d, true
			break
		}
	}
	if v, ok := s.vars[name]; ok && v != "" {
		return v
	}
	if list, ok := s.arrays[name]; ok {
		return strings.Join(list, " ")
	}
	if has {
		if strings.Contains(def, "$") && len(def) < len(text) {
			return s.expand(def)
		}
		return strings.Trim(def, `"'`)
	}
	return text
}

// calculate evaluates products, quotients, sums and differences from left to
// right, products first.
func (s *shell) calculate(text string) (string, bool) {
	fields := strings.Fields(regexp.MustCompile(`([*/+-])`).ReplaceAllString(text, " $1 "))
	value := func(w string) (int64, bool) {
		v, ok := s.vars[strings.Trim(w, "${}")]
		if !ok {
			v = w
		}
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil && n < 1<<31 && n > -1<<31
	}
	if len(fields)%2 == 0 || len(fields) > 32 {
		return "", false
	}
	total, ok := int64(0), true
	product, ok2 := value(fields[0])
	ok = ok && ok2
	sign := int64(1)
	for i := 1; i < len(fields) && ok; i += 2 {
		n, known := value(fields[i+1])
		ok = known
		switch fields[i] {
		case "*":
			product *= n
		case "/":
			if n == 0 {
				return "", false
			}
			product /= n
		case "+", "-":
			total += sign * product
			product, sign = n, 1
			if fields[i] == "-" {
				sign = -1
			}
		default:
			return "", false
		}
		if product > 1<<31 || product < -1<<31 {
			return "", false
		}
	}
	return strconv.FormatInt(total+sign*product, 10), ok
}

// withoutComment cuts what follows a # that begins a word outside quotes.
func withoutComment(line string) string {
	single, double := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\':
			i++
		case c == '\'' && !double:
			single = !single
		case c == '"' && !single:
			double = !double
		case c == '#' && !single && !double && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return line[:i]
		}
	}
	return line
}

// arrayOpen reports whether NAME=( is not closed yet.
func arrayOpen(text string) bool {
	m := assignment.FindStringSubmatch(strings.TrimSpace(strings.ReplaceAll(text, "\n", " ")))
	if m == nil || !strings.HasPrefix(strings.TrimSpace(m[3]), "(") {
		return false
	}
	return strings.Count(m[3], "(") > strings.Count(m[3], ")")
}

// quoteOpen reports whether a quote is not closed yet.
func quoteOpen(text string) bool {
	single, double := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && !single:
			i++
		case c == '\'' && !double:
			single = !single
		case c == '"' && !single:
			double = !double
		}
	}
	return single || double
}

// statements splits at ; and && and || outside quotes and brackets.
func statements(line string) []string {
	var out []string
	single, double, depth, from := false, false, 0, 0
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && !single:
			i++
		case c == '\'' && !double:
			single = !single
		case c == '"' && !single:
			double = !double
		case single || double:
		case c == '(' || c == '{':
			depth++
		case c == ')' || c == '}':
			depth--
		case depth > 0:
		case c == ';':
			out = append(out, line[from:i])
			from = i + 1
		case i+1 < len(line) && (line[i:i+2] == "&&" || line[i:i+2] == "||"):
			out = append(out, line[from:i])
			from = i + 2
			i++
		case c == '|' || c == '>' || c == '<' || c == '&':
			if i > from && c == '>' && line[i-1] >= '0' && line[i-1] <= '9' {
				out = append(out, line[from:i-1])
			} else {
				out = append(out, line[from:i])
			}
			return append(out, "") // what follows is a pipe or a redirection
		}
	}
	return append(out, line[from:])
}
