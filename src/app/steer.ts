import { dlopen, ptr } from 'bun:ffi'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'

const arch = process.arch === 'arm64' ? 'aarch64' : 'x86_64'
/** The C library: glibc, musl. */
const libraries = ['libc.so.6', `libc.musl-${arch}.so.1`]

// From Linux's headers: asm-generic/socket.h, linux/bpf_common.h, net/tcp_states.h.
const solSocket = 1
const soAttachReuseportCbpf = 51
const bpfReturn = 0x06
const tcpListen = '0A'

/**
 * Lets the second of two listeners that share a port by `SO_REUSEPORT` in this process accept all
 * new connections. So the first one can finish what has reached it and stop, and no connection is
 * refused or reset. https://man7.org/linux/man-pages/man7/socket.7.html. The program is `return 1`;
 * for a single listener that is no index, and the kernel ignores it. Returns whether it worked: on
 * Linux only.
 */
export function steerToSecond(port: number): boolean {
  if (process.platform !== 'linux') return false
  try {
    const [descriptor] = listenersOf(port)
    if (descriptor === undefined) return false
    const filter = new DataView(new ArrayBuffer(8))
    filter.setUint16(0, bpfReturn, true)
    filter.setUint32(4, 1, true)
    // struct sock_fprog: a length, and a pointer at its alignment.
    const program = new DataView(new ArrayBuffer(16))
    program.setUint16(0, 1, true)
    program.setBigUint64(8, BigInt(ptr(filter)), true)
    return libraries.some((library) => attach(library, descriptor, program))
  } catch {
    return false
  }
}

function attach(library: string, descriptor: number, program: DataView): boolean {
  try {
    const { symbols, close } = dlopen(library, {
      setsockopt: { args: ['i32', 'i32', 'i32', 'ptr', 'u32'], returns: 'i32' },
    })
    const { byteLength } = program
    const result = symbols.setsockopt(
      descriptor,
      solSocket,
      soAttachReuseportCbpf,
      ptr(program),
      byteLength,
    )
    close()
    return result === 0
  } catch {
    return false
  }
}

/** Descriptors of this process that listen on a TCP port. */
function listenersOf(port: number): number[] {
  const rows = ['tcp', 'tcp6'].flatMap((table) =>
    readFileSync(`/proc/self/net/${table}`, 'utf8').split('\n').slice(1),
  )
  const inodes = new Set(
    rows.flatMap((row) => {
      const [, local = '', , state, , , , , , inode = ''] = row.trim().split(/\s+/)
      const isOurs = state === tcpListen && Number.parseInt(local.split(':')[1] ?? '', 16) === port
      return isOurs ? [`socket:[${inode}]`] : []
    }),
  )
  return readdirSync('/proc/self/fd')
    .map(Number)
    .filter((descriptor) => {
      try {
        return inodes.has(readlinkSync(`/proc/self/fd/${descriptor}`))
      } catch {
        return false
      }
    })
}
