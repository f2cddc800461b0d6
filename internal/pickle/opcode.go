package pickle

// The opcodes of protocols 2 to 5 that carry data.
// Source: CPython Lib/pickletools.py.
const (
	opMark          = '('
	opStop          = '.'
	opPop           = '0'
	opPopMark       = '1'
	opDup           = '2'
	opBinFloat      = 'G'
	opBinInt        = 'J'
	opBinInt1       = 'K'
	opBinInt2       = 'M'
	opNone          = 'N'
	opBinUnicode    = 'X'
	opAppend        = 'a'
	opDict          = 'd'
	opAppends       = 'e'
	opBinGet        = 'h'
	opLongBinGet    = 'j'
	opList          = 'l'
	opBinPut        = 'q'
	opLongBinPut    = 'r'
	opSetItem       = 's'
	opTuple         = 't'
	opSetItems      = 'u'
	opEmptyDict     = '}'
	opEmptyList     = ']'
	opEmptyTuple    = ')'
	opProto         = 0x80
	opTuple1        = 0x85
	opTuple2        = 0x86
	opTuple3        = 0x87
	opNewTrue       = 0x88
	opNewFalse      = 0x89
	opLong1         = 0x8a
	opLong4         = 0x8b
	opShortUnicode  = 0x8c
	opBinUnicode8   = 0x8d
	opMemoize       = 0x94
	opFrame         = 0x95
	opGlobal        = 'c'
	opInst          = 'i'
	opStackGlobal   = 0x93
	opPersID        = 'P'
	opBinPersID     = 'Q'
	highestProtocol = 5
)

// refusal says why an opcode is refused. The names are those of pickletools, so
// that a user can look them up.
func refusal(op byte) (Fault, string) {
	switch op {
	case opGlobal:
		return Forbidden, "GLOBAL"
	case opStackGlobal:
		return Forbidden, "STACK_GLOBAL"
	case opInst:
		return Forbidden, "INST"
	case 'R':
		return Forbidden, "REDUCE"
	case 'b':
		return Forbidden, "BUILD"
	case 'o':
		return Forbidden, "OBJ"
	case 0x81:
		return Forbidden, "NEWOBJ"
	case 0x92:
		return Forbidden, "NEWOBJ_EX"
	case 0x82:
		return Forbidden, "EXT1"
	case 0x83:
		return Forbidden, "EXT2"
	case 0x84:
		return Forbidden, "EXT4"
	case opPersID:
		return Forbidden, "PERSID"
	case opBinPersID:
		return Forbidden, "BINPERSID"
	case 0x97:
		return Forbidden, "NEXT_BUFFER"
	case 0x98:
		return Forbidden, "READONLY_BUFFER"
	case 0x96:
		return Forbidden, "BYTEARRAY8"
	case 'B':
		return Forbidden, "BINBYTES"
	case 'C':
		return Forbidden, "SHORT_BINBYTES"
	case 0x8e:
		return Forbidden, "BINBYTES8"
	case 'T':
		return Forbidden, "BINSTRING"
	case 'U':
		return Forbidden, "SHORT_BINSTRING"
	case 0x8f:
		return Forbidden, "EMPTY_SET"
	case 0x90:
		return Forbidden, "ADDITEMS"
	case 0x91:
		return Forbidden, "FROZENSET"
	case 'I':
		return Text, "INT"
	case 'L':
		return Text, "LONG"
	case 'F':
		return Text, "FLOAT"
	case 'S':
		return Text, "STRING"
	case 'V':
		return Text, "UNICODE"
	case 'g':
		return Text, "GET"
	case 'p':
		return Text, "PUT"
	}
	return NotAPickle, ""
}
