package alloc

import (
	"strings"
	"testing"
)

func TestParseConf(t *testing.T) {
	for _, c := range []struct {
		conf string
		v    Version
		want string // the error, "" for none
		hint string
	}{
		{"", Latest(), "", ""},
		{"expandable_segments:True", Version{2, 1}, "", ""},
		{" max_split_size_mb : 256 , garbage_collection_threshold : 0.8 ", Version{2, 0}, "", ""},
		{"backend:cudaMallocAsync", Version{2, 0}, "", ""},
		{"pinned_use_cuda_host_register:True,pinned_num_register_threads:8", Version{2, 4}, "", ""},
		{"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", Version{2, 0}, "", ""},
		{"roundup_power2_divisions:[64:0,128:2,256:4,512:4,1024:4,>:1]", Version{2, 5}, "", ""},
		{"max_split_size_mb:20", Version{2, 6}, "", ""},
		{"max_split_size_mb:20", Version{2, 5}, "max_split_size_mb: 20 is too small", ""},
		{"max_split_size_mb:21", Version{2, 5}, "", ""},
		{"max_split_size_mb:40,large_segment_size_mb:64", Version{2, 11}, "max_split_size_mb: 40 is too small", ""},
		{"large_segment_size_mb:10", Version{2, 11}, "large_segment_size_mb: 10 is too small", ""},
		{"garbage_collection_threshold:1", Version{2, 9}, "garbage_collection_threshold: 1 must lie between", ""},
		{"garbage_collection_threshold:nan", Version{2, 9}, "is not a number", ""},
		{"expandable_segments:true", Version{2, 9}, `"true" is neither True nor False`, ""},
		{"expandable_segments:True", Version{2, 0}, "torch 2.0 does not know it", "since torch 2.1"},
		{"roundup_bypass_threshold_mb:64", Version{1, 13}, "", ""},
		{"roundup_bypass_threshold_mb:64", Version{2, 0}, "does not know it", "took it away"},
		{"roundup_power2_divisions:[256:1]", Version{1, 13}, "takes one number", ""},
		{"roundup_power2_divisions:3", Version{2, 9}, `"3" is not a power of two`, ""},
		{"roundup_power2_divisions:[100:2]", Version{2, 9}, `"100" is not a power of two`, ""},
		{"roundup_power2_divisions:[256:1", Version{2, 9}, "the list is not closed", ""},
		{"expandable_segment:True", Version{2, 9}, "no version of torch knows", "did you mean expandable_segments?"},
		{"something_else:1", Version{2, 9}, "no version of torch knows", ""},
		{"expandable_segments", Version{2, 9}, "has no value", "expandable_segments:value"},
		{":", Version{2, 9}, "stands where an option should", ""},
		{"max_split_size_mb:64 garbage_collection_threshold:0.5", Version{2, 9}, `":" follows the value`, "separate options with commas"},
		{"max_split_size_mb:99999999999999999999", Version{2, 9}, "is not a whole number", ""},
		{"per_process_memory_fraction:1.5", Version{2, 10}, "must lie between 0 and 1", ""},
	} {
		_, err := ParseConf(c.conf, c.v, Defaults())
		if c.want == "" {
			if err != nil {
				t.Errorf("%q as torch %s: %v", c.conf, c.v, err)
			}
			continue
		}
		e, ok := err.(*ConfError)
		if !ok || !strings.Contains(e.Error(), c.want) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%q as torch %s: %v, want %q (%q)", c.conf, c.v, err, c.want, c.hint)
		}
	}
}

func TestEachParseResetsWhatTorchResets(t *testing.T) {
	from, err := ParseConf("max_split_size_mb:64,expandable_segments:True", Version{2, 9}, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseConf("garbage_collection_threshold:0.5", Version{2, 9}, from)
	if err != nil || s.MaxSplitSize != Unlimited || !s.ExpandableSegments || s.GCThreshold != 0.5 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestConfWritesWhatParseConfReads(t *testing.T) {
	for _, conf := range []string{
		"", "expandable_segments:True", "max_split_size_mb:64,max_non_split_rounding_mb:64",
		"expandable_segments:True,large_segment_size_mb:12", "roundup_power2_divisions:8",
		"garbage_collection_threshold:0.8,per_process_memory_fraction:0.5",
		"roundup_power2_divisions:[1:0,2:0,4:0,8:0,16:0,32:0,64:0,128:0,256:4,512:0,1024:0,2048:0,4096:0,8192:0,16384:0,32768:0]",
	} {
		s, err := ParseConf(conf, Latest(), Defaults())
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Conf(); got != conf {
			t.Errorf("%q is written %q", conf, got)
		}
	}
}

func FuzzParseConf(f *testing.F) {
	f.Add("expandable_segments:True,roundup_power2_divisions:[256:1,>:2]")
	f.Add("a:b:[],,:")
	f.Fuzz(func(t *testing.T, conf string) {
		s, err := ParseConf(conf, Latest(), Defaults())
		if err != nil {
			return
		}
		again, err := ParseConf(s.Conf(), Latest(), Defaults())
		if err != nil {
			t.Fatalf("%q is written %q: %v", conf, s.Conf(), err)
		}
		again.StreamReuse, again.ReleaseLock, again.RoundupPower2Divisions, again.anyDivision = s.StreamReuse, s.ReleaseLock, s.RoundupPower2Divisions, s.anyDivision
		if again != s {
			t.Fatalf("%q: %+v, read again %+v", conf, s, again)
		}
	})
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{
		"2.4": {2, 4}, "v2.10.1": {2, 10}, "2.9.0a0+git1a2b": {2, 9}, " 1.13.1+cu117 ": {1, 13},
	} {
		if got, err := ParseVersion(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2", "two", "2.", "1.4", "0.9", "-2.4"} {
		if v, err := ParseVersion(text); err == nil {
			t.Errorf("%q is %v", text, v)
		}
	}
}

func TestDistinctCoversARange(t *testing.T) {
	got := Distinct(Version{2, 8}, Version{2, 11})
	want := []Version{{2, 11}, {2, 10}, {2, 8}}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}
