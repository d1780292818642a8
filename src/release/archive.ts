/** A file of an archive, or a directory when its path ends with a slash. */
export type Entry = {
  /** At most 99 ASCII characters, with no slash in front. */
  path: string
  /** Such as 0o755. */
  mode: number
  content?: string | Uint8Array
  /** Number of the account and of the group; 0 by default. */
  owner?: number
}

/** 1985-10-26, as in packages of npm: the time of every file, so that the same files give the same bytes. */
const modifiedSeconds = 499_162_500
const blockBytes = 512

/** A tar archive: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html, "ustar". */
export function tar(entries: readonly Entry[]): Buffer<ArrayBuffer> {
  const parts = entries.flatMap((entry) => {
    const content = bytesOf(entry.content)
    return [headerOf(entry, content.length), content, Buffer.alloc(-content.length & 511)]
  })
  return Buffer.concat([...parts, Buffer.alloc(2 * blockBytes)])
}

function headerOf({ path, mode, owner = 0 }: Entry, size: number): Buffer {
  if (!/^[\x20-\x7e]{1,99}$/.test(path)) throw new Error(`no name for a tar archive: ${path}`)
  const header = Buffer.alloc(blockBytes)
  const octal = (value: number, digits: number) => value.toString(8).padStart(digits, '0')
  const fields: [offset: number, text: string][] = [
    [0, path],
    [100, octal(mode, 7)],
    [108, octal(owner, 7)],
    [116, octal(owner, 7)],
    [124, octal(size, 11)],
    [136, octal(modifiedSeconds, 11)],
    // The checksum counts itself as spaces.
    [148, ' '.repeat(8)],
    [156, path.endsWith('/') ? '5' : '0'],
    [257, 'ustar\x0000'],
  ]
  for (const [offset, text] of fields) header.write(text, offset, 'latin1')
  const sum = header.reduce((total, byte) => total + byte, 0)
  header.write(`${octal(sum, 6)}\0`, 148, 'latin1')
  return header
}

/** The entries with a directory before each path that has none: dpkg makes no other one. */
export function withDirectories(entries: readonly Entry[]): Entry[] {
  const known = new Set<string>()
  return entries.flatMap((entry) => {
    const steps = [...entry.path.matchAll(/\//g)].map(({ index }) => entry.path.slice(0, index + 1))
    const missing = steps.filter((path) => path !== entry.path && !known.has(path))
    for (const path of [...missing, entry.path]) known.add(path)
    return [...missing.map((path) => ({ path, mode: 0o755 })), entry]
  })
}

/** An ar archive, as of a Debian package: https://manpages.debian.org/bookworm/dpkg-dev/deb.5 */
export function ar(files: Readonly<Record<string, string | Uint8Array>>): Buffer {
  const parts = Object.entries(files).flatMap(([name, text]) => {
    const content = bytesOf(text)
    const numbers = [`${modifiedSeconds}`.padEnd(12), '0     0     100644  ']
    const header = `${name.padEnd(16)}${numbers.join('')}${`${content.length}`.padEnd(10)}\`\n`
    return [Buffer.from(header), content, Buffer.from(content.length % 2 === 1 ? '\n' : '')]
  })
  return Buffer.concat([Buffer.from(arMagic), ...parts])
}

/** The content of a file in an ar archive; undefined when it has none of this name. */
export function fileInAr(archive: Buffer, name: string): Buffer | undefined {
  for (let at = arMagic.length; at < archive.length; ) {
    const size = Number(archive.toString('latin1', at + 48, at + 58))
    if (!Number.isSafeInteger(size)) return undefined
    const start = at + 60
    if (archive.toString('latin1', at, at + 16).replace(/\/? *$/, '') === name)
      return archive.subarray(start, start + size)
    at = start + size + (size % 2)
  }
  return undefined
}

const arMagic = '!<arch>\n'

/**
 * libdeflate gives the same bytes on every machine. Most of an executable is machine code, which the
 * highest level makes only 6 % smaller than the lowest, in seven times the time.
 */
export function gzip(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  return Bun.gzipSync(bytes, { library: 'libdeflate', level: 1 })
}

export function sha256(bytes: string | Uint8Array): string {
  return new Bun.CryptoHasher('sha256').update(bytes).digest('hex')
}

function bytesOf(content: Entry['content'] = ''): Uint8Array {
  return typeof content === 'string' ? Buffer.from(content) : content
}
