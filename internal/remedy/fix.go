package remedy

// fixRemedies answer failures that look like a shortage of memory and are not.
func fixRemedies() []Remedy {
	return []Remedy{{
		Code:     "fix.labels",
		Cures:    []Cause{NotOOMDeviceAssert},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("fix.labels"),
	}, {
		Code:     "fix.kernel_config",
		Cures:    []Cause{NotOOMTritonSMEM},
		Exact:    true,
		Slowdown: Range{1.0, 1.2},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.SharedMemoryNeeded > 0 && f.SharedMemoryLimit > 0 {
				return because("fix.kernel_config.sizes", int64(f.SharedMemoryNeeded), int64(f.SharedMemoryLimit))
			}
			return because("fix.kernel_config")
		},
	}, {
		Code:     "fix.driver",
		Cures:    []Cause{NotOOMDriverMismatch, NotOOMDeviceBusy, DriverOrHardware},
		Eases:    []Cause{MaskedNVMLAssert},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("fix.driver"),
	}, {
		Code:     "fix.illegal_access",
		Cures:    []Cause{NotOOMIllegalAccess},
		Eases:    []Cause{MaskedIllegalAccess},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("fix.illegal_access"),
	}, {
		Code:     "fix.first_error",
		Cures:    []Cause{CascadeFromOtherError},
		Eases:    []Cause{MaskedIllegalAccess, NotOOMIllegalAccess},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("fix.first_error"),
	}, {
		Code:     "fix.library_version",
		Cures:    []Cause{LibraryRegression},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("fix.library_version"),
	}, {
		Code:     "fix.request_size",
		Cures:    []Cause{ShapeOrDataBug},
		Eases:    []Cause{InputTooLarge},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			switch {
			case f.beyondCard():
				return because("fix.request_size.beyond", f.Tried, f.Account.Capacity)
			case f.weight(ShapeOrDataBug) > 0:
				return because("fix.request_size")
			}
			return never()
		},
	}, {
		Code:     "fix.numerical",
		Cures:    []Cause{NotOOMNumerical},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("fix.numerical"),
	}, {
		Code:     "fix.hidden_oom",
		Cures:    []Cause{MaskedNVMLAssert, MaskedIllegalAccess},
		Eases:    []Cause{MaskedLibraryInit},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("fix.hidden_oom"),
	}}
}
