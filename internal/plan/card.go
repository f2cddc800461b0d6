package plan

import (
	"slices"

	"unoom/internal/cloud"
	"unoom/internal/gpu"
	"unoom/internal/speed"
	"unoom/internal/units"
)

// HardwareOf returns a number of cards as a plan sees them. What the catalogue
// does not say of a card, its network above all, is what machines with such
// cards usually have.
func HardwareOf(c *gpu.Card, count int) Hardware {
	h := Hardware{
		Name: c.Name, Count: count, Capacity: c.Total(), Outside: c.Context(),
		Device: speed.Device{
			Arch: archOf(c.Arch),
			BF16: c.TFLOPS.BF16, FP16: c.TFLOPS.FP16, FP8: c.TFLOPS.FP8, TF32: c.TFLOPS.TF32, FP32: c.TFLOPS.FP32,
			Bandwidth: c.BandwidthGBs, SMs: c.SMs, Link: c.LinkGBs,
			// Of the rate of the bus about four fifths arrive: 25 of 31 GB/s on
			// PCIe 4, 55 of 63 on PCIe 5 as measured on 8 H200.
			PCIe: 0.8 * c.PCIeGBs, PerNode: max(c.PerNode, 1),
		},
	}
	d := &h.Device
	h.Pairs = c.Link == "nvlink-bridge"
	if h.Pairs && count > 2 {
		d.Link = 0
	}
	if d.Bandwidth == 0 { // a custom capacity: a middling card, so that plans can be ranked
		d.Arch, d.BF16, d.FP16, d.FP32, d.Bandwidth, d.PCIe, d.PerNode = speed.OtherArch, 150, 150, 40, 1000, 25, 8
	}
	if d.PCIe == 0 {
		d.PCIe = 25
	}
	// Networks of the usual machines, GB/s for each card: 400 Gb/s beside each
	// Hopper and Blackwell, 200 Gb/s beside each A100 with NVLink, 100 Gb/s for
	// the whole machine elsewhere.
	switch {
	case d.Link > 300:
		d.NIC = 50
	case d.Link >= 150:
		d.NIC = 25
	default:
		d.NIC = 12.5 / float64(d.PerNode)
	}
	if len(c.USDHour) == 2 {
		h.Price = Price{Low: c.USDHour[0], High: c.USDHour[1], Source: "catalog/gpus", Date: "2026-05"}
	}
	return h
}

// OnMachine returns the cards of one machine of a cloud.
func OnMachine(c *gpu.Card, m *cloud.Machine) Hardware {
	h := HardwareOf(c, m.GPUs)
	h.Machine, h.PerMachine = m.Cloud+" "+m.Name, m.GPUs
	h.Device.PerNode = m.GPUs
	per := m.USDHour / float64(m.GPUs)
	where := m.Source
	if m.Region != "any" {
		where += ", " + m.Region
	}
	h.Price = Price{Low: per, High: per, Source: where, Date: m.Date}
	h.Host = units.FromGiB(m.RAMGiB / float64(m.GPUs))
	return h
}

func archOf(name string) speed.Arch {
	switch a := speed.Arch(name); a {
	case speed.Volta, speed.Turing, speed.Ampere, speed.AmpereGA, speed.Ada, speed.Hopper, speed.Blackwell, speed.GB20x, speed.CDNA3:
		return a
	}
	if name == "cdna2" || name == "cdna4" {
		return speed.CDNA3
	}
	return speed.OtherArch
}

// workstationHost is the host memory assumed for a card that no cloud has, for
// each of them: what a workstation with one or two such cards is sold with.
const workstationHost = 64 * units.GiB

// AssumeHost sets the host memory of each card where nobody stated it: the
// median of the machines with such cards that can be rented. A plan that lives
// in host memory has to be one that a machine can hold.
func (h *Hardware) AssumeHost(machines []cloud.Machine) {
	var seen []float64
	for i := range machines {
		if m := &machines[i]; m.GPU == h.Name && m.GPUs > 0 {
			seen = append(seen, m.RAMGiB/float64(m.GPUs))
		}
	}
	h.Host, h.HostAssumed = workstationHost, true
	if len(seen) > 0 {
		slices.Sort(seen)
		h.Host = units.FromGiB(seen[len(seen)/2])
	}
}
