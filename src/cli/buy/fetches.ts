import { dlopen, ptr } from 'bun:ffi'

/**
 * Variable with the runtime's limit of concurrent requests by `fetch`, 256 by default. It applies
 * to the whole process. A request counts until its answer has been read, and further requests wait.
 * So slow buyers of one merchant would block all merchants and the calls to nodes. The runtime
 * reads the limit only at its start.
 */
const fetchLimitName = 'BUN_CONFIG_MAX_HTTP_REQUESTS'

const fetchLimit = '16384'

/** The C library: glibc, musl by its loader's and by its package's name, and macOS. */
const libraries = ['libc.so.6', 'libc.so', `libc.musl-${machine()}.so.1`, 'libSystem.B.dylib']

/**
 * Replaces this program by itself (execve) with the raised limit in its environment, so that
 * process id, parent and file descriptors stay. Returns only on failure: then the limit is
 * unchanged. Call it before anything is opened or another thread has work.
 */
export function raiseFetchLimit(): void {
  if (process.platform === 'win32') return
  for (const library of libraries) {
    try {
      const { symbols } = dlopen(library, {
        // Do not use `process.env` here: it cannot represent every byte.
        setenv: { args: ['ptr', 'ptr', 'i32'], returns: 'i32' },
        execv: { args: ['ptr', 'ptr'], returns: 'i32' },
      })
      const texts = [process.argv0, ...ownArguments()].map(toC)
      symbols.setenv(toC(fetchLimitName), toC(fetchLimit), 1)
      symbols.execv(toC(process.execPath), pointersTo(texts))
      // execve failed. Keep the strings reachable until here.
      if (texts.length > 0) return
    } catch {
      // The library has another name on this system.
    }
  }
}

/** Arguments after the program's name. A compiled executable has no script among them. */
function ownArguments(): string[] {
  const isCompiled = Bun.main.startsWith('/$bunfs/')
  return [...process.execArgv, ...(isCompiled ? [] : [Bun.main]), ...process.argv.slice(2)]
}

function toC(text: string): Buffer {
  return Buffer.from(`${text}\0`)
}

/** An array of pointers with a null at its end. The texts must stay reachable while it is used. */
function pointersTo(texts: readonly Buffer[]): BigUint64Array {
  return BigUint64Array.from([...texts.map((text) => BigInt(ptr(text))), 0n])
}

function machine(): string {
  return process.arch === 'arm64' ? 'aarch64' : 'x86_64'
}
