package speed

// An Arch is a generation of accelerators, as far as its efficiency differs.
type Arch string

// The generations.
const (
	Volta     Arch = "volta"
	Turing    Arch = "turing"
	Ampere    Arch = "ampere" // A100, A30
	AmpereGA  Arch = "ga10x"  // RTX 30, A40, A10, A5000
	Ada       Arch = "ada"    // RTX 40, L4, L40
	Hopper    Arch = "hopper"
	Blackwell Arch = "blackwell" // B200, GB200
	GB20x     Arch = "gb20x"     // RTX 50, RTX PRO Blackwell
	CDNA3     Arch = "cdna3"
	OtherArch Arch = ""
)

// A Device is one accelerator and what connects it, in the units of data sheets.
type Device struct {
	Arch Arch
	// Dense TFLOP/s of the matrix units, accumulating in float32; 0: the type is
	// not supported.
	BF16, FP16, FP8, TF32, FP32 float64
	Bandwidth                   float64 // GB/s of device memory
	SMs                         int     // 0: taken from the arithmetic rate
	// Link is the one-way rate of the links between the accelerators of a node
	// (NVLink, XGMI) in GB/s, 0: they are joined by PCIe alone.
	Link float64
	PCIe float64 // GB/s, one way
	NIC  float64 // GB/s of network for each accelerator; 0: none
	// PerNode is the number of accelerators in a node.
	PerNode int
	// Power is the share of the rated power limit the card runs at, 0: all.
	Power float64
}
