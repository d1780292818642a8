import { closeSync, openSync, readSync } from 'node:fs'
import type { Target } from './targets'

/** The fields of an executable's header. */
export type Headers = {
  format: Target['format']
  machine: Target['machine']
  /** The loader that an ELF file asks for. */
  loader?: string
  /** Whether a Mach-O file has a signature: macOS on arm64 runs no other one. */
  isSigned?: boolean
}

const headBytes = 64 * 1024

/** The number of each machine in the headers of a format. */
const machines: Record<Headers['format'], Record<number, Headers['machine']>> = {
  elf: { 62: 'x64', 183: 'arm64' },
  'mach-o': { 16777223: 'x64', 16777228: 'arm64' },
  pe: { 34404: 'x64', 43620: 'arm64' },
}

/** Reads the headers of an executable file; undefined when its format is unknown. */
export function headersOf(path: string): Headers | undefined {
  const file = openSync(path, 'r')
  try {
    const head = Buffer.alloc(headBytes)
    const length = readSync(file, head, 0, headBytes, 0)
    return parseHead(head.subarray(0, length))
  } catch (error) {
    // An offset in the header points beyond its end.
    if (error instanceof RangeError) return undefined
    throw error
  } finally {
    closeSync(file)
  }
}

function parseHead(head: Buffer): Headers | undefined {
  if (head.readUInt32BE(0) === 0x7f454c46) return elf(head)
  if (head.readUInt32LE(0) === 0xfeedfacf) return machO(head)
  if (head.toString('latin1', 0, 2) === 'MZ') return pe(head)
  return undefined
}

/** A little-endian ELF file of 64 bits: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html */
function elf(head: Buffer): Headers | undefined {
  const machine = machines.elf[head.readUInt16LE(18)]
  if (head[4] !== 2 || head[5] !== 1 || machine === undefined) return undefined
  const [start, size, count] = [head.readUInt32LE(32), head.readUInt16LE(54), head.readUInt16LE(56)]
  for (let index = 0; index < count; index++) {
    const at = start + index * size
    // PT_INTERP
    if (head.readUInt32LE(at) !== 3) continue
    const [offset, length] = [head.readUInt32LE(at + 8), head.readUInt32LE(at + 32)]
    const loader = head.toString('latin1', offset, offset + length).replace(/\0+$/, '')
    return { format: 'elf', machine, loader }
  }
  return { format: 'elf', machine }
}

/** https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h */
function machO(head: Buffer): Headers | undefined {
  const machine = machines['mach-o'][head.readUInt32LE(4)]
  // MH_EXECUTE
  if (machine === undefined || head.readUInt32LE(12) !== 2) return undefined
  const count = head.readUInt32LE(16)
  let isSigned = false
  let at = 32
  for (let index = 0; index < count; index++) {
    // LC_CODE_SIGNATURE
    if (head.readUInt32LE(at) === 0x1d) isSigned = true
    const size = head.readUInt32LE(at + 4)
    if (size < 8) return undefined
    at += size
  }
  return { format: 'mach-o', machine, isSigned }
}

/** https://learn.microsoft.com/en-us/windows/win32/debug/pe-format */
function pe(head: Buffer): Headers | undefined {
  const at = head.readUInt32LE(0x3c)
  if (head.toString('latin1', at, at + 4) !== 'PE\0\0') return undefined
  const machine = machines.pe[head.readUInt16LE(at + 4)]
  return machine === undefined ? undefined : { format: 'pe', machine }
}
