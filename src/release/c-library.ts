import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { runProgram } from '../build'
import { type Entry, fileInAr, sha256 } from './archive'
import { architectures } from './deb'
import { RuntimeError } from './runtime'
import type { Target } from './targets'

/**
 * The C library of the image, a package of Debian 12. After an update, `apt-get download
 * --print-uris libc6` prints the new hash; `turnpike` needs nothing else of a distribution.
 */
export const libraryVersion = '2.36-9+deb12u14'
const digests = {
  x64: 'ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf',
  arm64: '01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4',
} as const
/** Keeps every version of every package. */
const archive = 'https://snapshot.debian.org/archive/debian/20261101T000000Z/pool/main/g/glibc'

const triplets = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' } as const
const libraries = ['c.so.6', 'm.so.6', 'dl.so.2', 'pthread.so.0', 'resolv.so.2']
/** A scanner of images finds by these files which package is in it. */
const release = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'

type Source = {
  /** A directory with packages of Debian; what it has is not downloaded. */
  packages: string | undefined
  digest?: string
}

/** The files that an executable of a target loads, for the image. Throws RuntimeError. */
export async function libraryOf(
  { machine, loader = '' }: Target,
  { packages, digest = digests[machine] }: Source,
): Promise<Entry[]> {
  const name = `libc6_${libraryVersion}_${architectures[machine]}.deb`
  const kept = packages === undefined ? '' : join(packages, name)
  const bytes = existsSync(kept) ? readFileSync(kept) : await download(`${archive}/${name}`)
  if (sha256(bytes) !== digest)
    throw new RuntimeError(`${name} is not the expected package: ${sha256(bytes)}, not ${digest}`)
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-library-'))
  try {
    for (const part of ['control', 'data'])
      await unpack(fileInAr(bytes, `${part}.tar.xz`), join(directory, part))
    const read = (path: string) => readFileSync(join(directory, path))
    const lib = `lib/${triplets[machine]}`
    const copyright = 'usr/share/doc/libc6/copyright'
    return [
      // The path of the loader is a link, which would lead out of the directory.
      { path: loader.slice(1), mode: 0o755, content: read(`data/${lib}/${basename(loader)}`) },
      ...libraries.map((each) => {
        const path = `${lib}/lib${each}`
        return { path, mode: 0o755, content: read(`data/${path}`) }
      }),
      { path: copyright, mode: 0o644, content: read(`data/${copyright}`) },
      { path: 'var/lib/dpkg/status.d/libc6', mode: 0o644, content: read('control/control') },
      { path: 'etc/os-release', mode: 0o644, content: release },
    ]
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

async function download(url: string): Promise<Buffer> {
  const answer = await fetch(url).catch((error: Error) => error)
  if (answer instanceof Error) throw new RuntimeError(`${url}: ${answer.message}`)
  if (!answer.ok) throw new RuntimeError(`${url} answers ${answer.status}`)
  return Buffer.from(await answer.arrayBuffer())
}

async function unpack(bytes: Buffer | undefined, directory: string): Promise<void> {
  const file = `${directory}.tar.xz`
  await Bun.write(file, bytes ?? '')
  const command = ['sh', '-c', 'mkdir "$1" && tar -xJf "$2" -C "$1"', 'sh', directory, file]
  const { code, problems } = await runProgram(command)
  if (code !== 0) throw new RuntimeError(`tar -xJ, which needs xz: ${problems.trim()}`)
}
