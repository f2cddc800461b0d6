package alloc

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Unlimited is the default of MaxSplitSize: every block may be split.
const Unlimited = math.MaxInt64

// Settings is what PYTORCH_ALLOC_CONF sets, as far as it changes what the
// allocator does.
type Settings struct {
	Backend                string // "native" or "cudaMallocAsync"
	MaxSplitSize           int64  // bytes; Unlimited if not set
	MaxNonSplitRounding    int64  // bytes
	LargeSegmentSize       int64  // bytes
	GCThreshold            float64
	ExpandableSegments     bool
	RoundupPower2Divisions [divisionEntries]uint64 // 0 is off; entry i is for sizes from 2^(20+i)
	RoundupBypassThreshold int64                   // bytes; 0 is off; torch 1.13 only
	MemoryFraction         float64                 // per_process_memory_fraction; 1 is no limit
	ThrowOnOOM             bool                    // throw_on_cudamalloc_oom
	StreamReuse            bool                    // graph_capture_record_stream_reuse
	ReleaseLock            bool                    // release_lock_on_cudamalloc

	anyDivision bool
}

// Defaults returns the settings of an empty configuration.
func Defaults() Settings {
	return Settings{
		Backend:             "native",
		MaxSplitSize:        Unlimited,
		MaxNonSplitRounding: largeBuffer,
		LargeSegmentSize:    largeBuffer,
		MemoryFraction:      1,
	}
}

// Normal fills in what a caller who builds Settings by hand may leave zero.
func (s Settings) Normal() Settings {
	d := Defaults()
	if s.Backend == "" {
		s.Backend = d.Backend
	}
	if s.MaxSplitSize <= 0 {
		s.MaxSplitSize = d.MaxSplitSize
	}
	if s.LargeSegmentSize <= 0 {
		s.LargeSegmentSize = d.LargeSegmentSize
	}
	if s.MaxNonSplitRounding <= 0 {
		s.MaxNonSplitRounding = s.LargeSegmentSize
	}
	if s.MemoryFraction <= 0 {
		s.MemoryFraction = d.MemoryFraction
	}
	s.anyDivision = false
	for _, d := range s.RoundupPower2Divisions {
		s.anyDivision = s.anyDivision || d > 1
	}
	return s
}

// A ConfError says which part of a configuration torch would refuse, and why.
type ConfError struct {
	Key  string // the option, or "" for the whole string
	Msg  string
	Hint string // what to write instead; may be empty
}

func (e *ConfError) Error() string {
	if e.Key == "" {
		return "alloc conf: " + e.Msg
	}
	return fmt.Sprintf("alloc conf: %s: %s", e.Key, e.Msg)
}

// option is one key of the configuration string.
type option struct {
	key          string
	since, until Version // until is the first version without it; zero if there is none
	set          func(s *Settings, v Version, value []string) error
}

// hostOption is an option of pinned host memory or of sharing between
// processes: accepted, of no effect on the device.
func hostOption(key string, since Version) option {
	return option{key: key, since: since, set: func(*Settings, Version, []string) error { return nil }}
}

// options lists every key that some version of torch knows.
//
// pytorch c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp,
// before v2.9 c10/cuda/CUDAAllocatorConfig.cpp alone, before v2.2
// c10/cuda/CUDACachingAllocator.cpp. The newest three are of pull requests that
// were read as text, not as source.
func options() []option {
	return []option{
		{key: "max_split_size_mb", since: Version{1, 10}, set: setMaxSplitSize},
		{key: "max_non_split_rounding_mb", since: Version{2, 6}, set: func(s *Settings, _ Version, value []string) error {
			mib, err := wholeNumber(value)
			if err != nil {
				return err
			}
			if mib*mibBytes < s.LargeSegmentSize {
				return fmt.Errorf("%d is too small: it must be at least %d", mib, s.LargeSegmentSize/mibBytes)
			}
			s.MaxNonSplitRounding = mib * mibBytes
			return nil
		}},
		{key: "garbage_collection_threshold", since: Version{1, 12}, set: func(s *Settings, _ Version, value []string) error {
			x, err := fraction(value)
			if err == nil && (x <= 0 || x >= 1) {
				err = fmt.Errorf("%s must lie between 0 and 1, both excluded", value[0])
			}
			s.GCThreshold = x
			return err
		}},
		{key: "roundup_power2_divisions", since: Version{1, 12}, set: setDivisions},
		{key: "roundup_bypass_threshold_mb", since: Version{1, 13}, until: Version{2, 0}, set: func(s *Settings, _ Version, value []string) error {
			mib, err := wholeNumber(value)
			s.RoundupBypassThreshold = mib * mibBytes
			return err
		}},
		{key: "backend", since: Version{2, 0}, set: func(s *Settings, _ Version, value []string) error {
			name, err := word(value)
			if err == nil && name != "native" && name != "cudaMallocAsync" && name != "hipMallocAsync" {
				err = fmt.Errorf("%q is none of native, cudaMallocAsync, hipMallocAsync", name)
			}
			s.Backend = name
			return err
		}},
		{key: "expandable_segments", since: Version{2, 1}, set: boolean(func(s *Settings) *bool { return &s.ExpandableSegments })},
		{key: "release_lock_on_cudamalloc", since: Version{2, 1}, set: boolean(func(s *Settings) *bool { return &s.ReleaseLock })},
		{key: "per_process_memory_fraction", since: Version{2, 10}, set: func(s *Settings, _ Version, value []string) error {
			x, err := fraction(value)
			if err == nil && (x < 0 || x > 1) {
				err = fmt.Errorf("%s must lie between 0 and 1", value[0])
			}
			s.MemoryFraction = x
			return err
		}},
		{key: "graph_capture_record_stream_reuse", since: Version{2, 10}, set: boolean(func(s *Settings) *bool { return &s.StreamReuse })},
		{key: "large_segment_size_mb", since: Version{2, 11}, set: func(s *Settings, _ Version, value []string) error {
			mib, err := wholeNumber(value)
			if err == nil && mib*mibBytes <= minLargeAlloc {
				err = fmt.Errorf("%d is too small: it must be more than 10", mib)
			}
			if s.MaxNonSplitRounding == s.LargeSegmentSize {
				s.MaxNonSplitRounding = mib * mibBytes
			}
			s.LargeSegmentSize = mib * mibBytes
			return err
		}},
		{key: "throw_on_cudamalloc_oom", since: Version{2, 12}, set: boolean(func(s *Settings) *bool { return &s.ThrowOnOOM })},
		hostOption("pinned_use_cuda_host_register", Version{2, 2}),
		hostOption("pinned_num_register_threads", Version{2, 2}),
		hostOption("pinned_use_background_threads", Version{2, 6}),
		hostOption("pinned_reserve_segment_size_mb", Version{2, 10}),
		hostOption("expandable_segments_handle_type", Version{2, 8}),
		hostOption("pinned_free_catch_all", Version{2, 13}),
		hostOption("expandable_segments_reserve", Version{2, 14}),
		hostOption("expandable_segments_reserve_by_class", Version{2, 14}),
	}
}

const mibBytes = 1 << 20

// ParseConf reads a configuration string as torch of version v does, on top of
// the settings from. It returns a *ConfError where torch would raise.
func ParseConf(conf string, v Version, from Settings) (Settings, error) {
	s := from.Normal()
	// Each parse begins by resetting these three, and the segment size.
	s.MaxSplitSize, s.GCThreshold = Unlimited, 0
	s.RoundupPower2Divisions = [divisionEntries]uint64{}
	s.LargeSegmentSize, s.MaxNonSplitRounding = largeBuffer, largeBuffer
	pairs, err := pairsOf(conf)
	if err != nil {
		return s, err
	}
	// The size of a segment bounds other options, wherever it stands.
	slices.SortStableFunc(pairs, func(a, b pair) int {
		return boolOrder(a.key != "large_segment_size_mb") - boolOrder(b.key != "large_segment_size_mb")
	})
	known := options()
	for _, p := range pairs {
		i := slices.IndexFunc(known, func(o option) bool { return o.key == p.key })
		if i < 0 {
			return s, unknownKey(p.key, known)
		}
		o := known[i]
		if v.Before(o.since) {
			return s, &ConfError{p.key, fmt.Sprintf("torch %s does not know it", v), fmt.Sprintf("it exists since torch %s", o.since)}
		}
		if o.until != (Version{}) && !v.Before(o.until) {
			return s, &ConfError{p.key, fmt.Sprintf("torch %s does not know it", v), fmt.Sprintf("torch %s took it away", o.until)}
		}
		if err := o.set(&s, v, p.value); err != nil {
			return s, &ConfError{Key: p.key, Msg: err.Error()}
		}
	}
	return s.Normal(), nil
}

func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}

// pair is one `key:value`; a list value keeps its brackets out and its commas
// in order.
type pair struct {
	key   string
	value []string
}

// pairsOf splits a configuration as torch's tokenizer does: commas, colons and
// brackets stand alone, blanks are dropped, everything else belongs to words.
func pairsOf(conf string) ([]pair, error) {
	var tokens []string
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			tokens = append(tokens, b.String())
			b.Reset()
		}
	}
	for _, r := range conf {
		switch r {
		case ',', ':', '[', ']':
			flush()
			tokens = append(tokens, string(r))
		case ' ', '\t', '\n', '\r':
		default:
			b.WriteRune(r)
		}
	}
	flush()
	var pairs []pair
	for i := 0; i < len(tokens); {
		if isMark(tokens[i]) {
			return nil, &ConfError{Msg: fmt.Sprintf("%q stands where an option should", tokens[i]), Hint: "write key:value,key:value"}
		}
		p := pair{key: tokens[i]}
		if i+2 >= len(tokens) || tokens[i+1] != ":" {
			return nil, &ConfError{Key: p.key, Msg: "has no value", Hint: "write " + p.key + ":value"}
		}
		i += 2
		if tokens[i] == "[" {
			for i++; i < len(tokens) && tokens[i] != "]"; i++ {
				p.value = append(p.value, tokens[i])
			}
			if i == len(tokens) {
				return nil, &ConfError{Key: p.key, Msg: "the list is not closed", Hint: "add ]"}
			}
			p.value = append([]string{"["}, p.value...)
		} else {
			if isMark(tokens[i]) {
				return nil, &ConfError{Key: p.key, Msg: "has no value", Hint: "write " + p.key + ":value"}
			}
			p.value = []string{tokens[i]}
		}
		pairs = append(pairs, p)
		i++
		if i < len(tokens) {
			if tokens[i] != "," {
				return nil, &ConfError{Key: p.key, Msg: fmt.Sprintf("%q follows the value", tokens[i]), Hint: "separate options with commas"}
			}
			i++
		}
	}
	return pairs, nil
}

func isMark(token string) bool { return strings.Contains(",:[]", token) }

func unknownKey(key string, known []option) error {
	e := &ConfError{Key: key, Msg: "no version of torch knows this option"}
	best, bestDistance := "", len(key)
	for _, o := range known {
		if d := distance(key, o.key); d < bestDistance {
			best, bestDistance = o.key, d
		}
	}
	if bestDistance <= max(3, len(key)/3) {
		e.Hint = "did you mean " + best + "?"
	}
	return e
}

// distance is the number of insertions, deletions and replacements from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func word(value []string) (string, error) {
	if len(value) != 1 || value[0] == "[" {
		return "", fmt.Errorf("takes one value, not a list")
	}
	return value[0], nil
}

func wholeNumber(value []string) (int64, error) {
	w, err := word(value)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(w, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0, fmt.Errorf("%q is not a whole number of MiB", w)
	}
	return n, nil
}

func fraction(value []string) (float64, error) {
	w, err := word(value)
	if err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(w, 64)
	if err != nil || math.IsNaN(x) {
		return 0, fmt.Errorf("%q is not a number", w)
	}
	return x, nil
}

// boolean reads True or False, spelled exactly so.
func boolean(field func(*Settings) *bool) func(*Settings, Version, []string) error {
	return func(s *Settings, _ Version, value []string) error {
		w, err := word(value)
		if err != nil {
			return err
		}
		if w != "True" && w != "False" {
			return fmt.Errorf("%q is neither True nor False", w)
		}
		*field(s) = w == "True"
		return nil
	}
}

func setMaxSplitSize(s *Settings, v Version, value []string) error {
	mib, err := wholeNumber(value)
	if err != nil {
		return err
	}
	least := s.LargeSegmentSize / mibBytes
	if v.Before(Version{2, 6}) {
		least++ // v2.5 CUDAAllocatorConfig.cpp: val1 > kLargeBuffer / (1024 * 1024)
	}
	if mib < least {
		return fmt.Errorf("%d is too small: torch %s takes %d or more", mib, v, least)
	}
	s.MaxSplitSize = mib * mibBytes
	return nil
}

// setDivisions reads D, or [B:D,B:D,…,>:D] with boundaries B in MiB.
// c10/core/AllocatorConfig.cpp: parseRoundUpPower2Divisions.
func setDivisions(s *Settings, v Version, value []string) error {
	r := rulesOf(v)
	if value[0] != "[" {
		d, err := divisions(value[0], false)
		for i := range s.RoundupPower2Divisions {
			s.RoundupPower2Divisions[i] = d
		}
		return err
	}
	if !r.divisionsPerSize {
		return fmt.Errorf("torch %s takes one number, not a list", v)
	}
	items := value[1:]
	table, first, last := &s.RoundupPower2Divisions, true, 0
	for i := 0; i < len(items); {
		if i+2 >= len(items) || items[i+1] != ":" {
			return fmt.Errorf("the list is of the form [256:1,512:2,>:4]")
		}
		d, err := divisions(items[i+2], true)
		if err != nil {
			return err
		}
		if items[i] == ">" {
			from := last
			if r.lastDivisionKept && !first {
				from++
			}
			for j := from; j < divisionEntries; j++ {
				table[j] = d
			}
		} else {
			b, err := strconv.ParseUint(items[i], 10, 63)
			if err != nil || bits.OnesCount64(b) != 1 {
				return fmt.Errorf("the boundary %q is not a power of two", items[i])
			}
			at := min(bits.Len64(b)-1, divisionEntries-1)
			if first {
				for j := range at {
					table[j] = d
				}
			}
			table[at], first, last = d, false, at
		}
		if i += 3; i < len(items) {
			if items[i] != "," {
				return fmt.Errorf("%q follows a pair: separate pairs with commas", items[i])
			}
			i++
		}
	}
	return nil
}

func divisions(text string, zero bool) (uint64, error) {
	d, err := strconv.ParseUint(text, 10, 32)
	if err != nil || bits.OnesCount64(d) != 1 && !(zero && d == 0) {
		return 0, fmt.Errorf("%q is not a power of two", text)
	}
	return d, nil
}

// Conf writes the settings as a configuration string, without those that are
// torch's defaults: "" if all are.
func (s Settings) Conf() string {
	s = s.Normal()
	d := Defaults()
	var parts []string
	add := func(changed bool, format string, args ...any) {
		if changed {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(s.Backend != d.Backend, "backend:%s", s.Backend)
	add(s.ExpandableSegments, "expandable_segments:True")
	add(s.MaxSplitSize != d.MaxSplitSize, "max_split_size_mb:%d", s.MaxSplitSize/mibBytes)
	add(s.LargeSegmentSize != d.LargeSegmentSize, "large_segment_size_mb:%d", s.LargeSegmentSize/mibBytes)
	add(s.MaxNonSplitRounding != s.LargeSegmentSize, "max_non_split_rounding_mb:%d", s.MaxNonSplitRounding/mibBytes)
	add(s.GCThreshold > 0, "garbage_collection_threshold:%g", s.GCThreshold)
	add(s.MemoryFraction != d.MemoryFraction, "per_process_memory_fraction:%g", s.MemoryFraction)
	add(s.RoundupBypassThreshold > 0, "roundup_bypass_threshold_mb:%d", s.RoundupBypassThreshold/mibBytes)
	add(s.ThrowOnOOM, "throw_on_cudamalloc_oom:True")
	add(s.anyDivision, "%s", s.divisionsConf())
	return strings.Join(parts, ",")
}

// divisionsConf writes the division table: one number if all entries agree.
func (s *Settings) divisionsConf() string {
	t := &s.RoundupPower2Divisions
	same := true
	var list []string
	for i, d := range t {
		same = same && d == t[0]
		list = append(list, fmt.Sprintf("%d:%d", 1<<i, d))
	}
	if same {
		return fmt.Sprintf("roundup_power2_divisions:%d", t[0])
	}
	return "roundup_power2_divisions:[" + strings.Join(list, ",") + "]"
}
