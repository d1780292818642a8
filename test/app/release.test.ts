import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { createPrivateKey, createPublicKey, scryptSync, verify } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import manifest from '../../package.json'
import { release } from '../../src/release'
import { headersOf } from '../../src/release/headers'
import { readSigningKey, signatureOf } from '../../src/release/minisign'
import type { Package } from '../../src/release/packages'
import { fetchRuntime } from '../../src/release/runtime'
import { runtimeVersion, type Target, targets } from '../../src/release/targets'
import { executable } from '../harness/executable'
import { fencesOf } from '../harness/fences'
import { outcomeOf } from '../harness/outcome'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-release-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** The target that is this machine, with its loader. */
const own: Target = {
  ...(targets[0] as Target),
  ...headersOf(executable),
}

const seed = Buffer.alloc(32, 7)
const keyId = Buffer.from('12345678')
/** The 32 bytes of the public key are the end of its DER form. */
const publicBytes = createPublicKey(
  createPrivateKey({
    key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed]),
    format: 'der',
    type: 'pkcs8',
  }),
)
const rawPublic = publicBytes.export({ format: 'der', type: 'spki' }).subarray(-32)
const publicKey = Buffer.concat([Buffer.from('Ed'), keyId, rawPublic]).toString('base64')

/** A secret key as minisign writes it; with a password that is cheap to derive from. */
function secretKey(password?: string): string {
  const content = Buffer.concat([keyId, seed, rawPublic])
  const head = Buffer.alloc(54)
  head.write(password === undefined ? 'Ed\0\0B2' : 'EdScB2', 'latin1')
  const sum = new Bun.CryptoHasher('blake2b256').update('Ed').update(content).digest()
  const sealed = Buffer.concat([content, password === undefined ? Buffer.alloc(32) : sum])
  if (password !== undefined) {
    head.writeBigUInt64LE(32_768n, 38)
    head.writeBigUInt64LE(16_777_216n, 46)
    const costs = { N: 1024, r: 8, p: 1 }
    const stream = scryptSync(password, head.subarray(6, 38), sealed.length, costs)
    for (const [index, byte] of stream.entries()) sealed[index] = (sealed[index] ?? 0) ^ byte
  }
  return `untrusted comment: key\n${Buffer.concat([head, sealed]).toString('base64')}\n`
}

/** The comment of a signature by the rules of minisign; undefined when it is not of the file. */
function commentOf(file: Buffer, text: string): string | undefined {
  const [, line = '', trusted = '', global = ''] = text.split('\n')
  const bytes = Buffer.from(line, 'base64')
  const signature = bytes.subarray(10)
  const comment = trusted.replace(/^trusted comment: /, '')
  const digest = new Bun.CryptoHasher('blake2b512').update(file).digest()
  const isRight =
    bytes.toString('latin1', 0, 10) === `ED${keyId}` &&
    verify(null, digest, publicBytes, signature) &&
    verify(
      null,
      Buffer.concat([signature, Buffer.from(comment)]),
      publicBytes,
      Buffer.from(global, 'base64'),
    )
  return isRight ? comment : undefined
}

test('the targets are those of the runtime of this project, each with a hash', () => {
  expect(manifest.packageManager).toBe(`bun@${runtimeVersion}`)
  expect(targets.map(({ name }) => name)).toEqual([
    'linux-x64',
    'linux-arm64',
    'linux-x64-musl',
    'linux-arm64-musl',
    'darwin-arm64',
    'windows-x64',
  ])
  for (const { integrity, file, name } of targets) {
    expect(Buffer.from(integrity.replace(/^sha512-/, ''), 'base64')).toHaveLength(64)
    expect(file).toStartWith(`turnpike-${name}`)
  }
  expect(new Set(targets.map(({ integrity }) => integrity)).size).toBe(targets.length)
})

describe('the headers of a file', () => {
  const read = (...parts: readonly [offset: number, bytes: string][]) => {
    const head = Buffer.alloc(4096)
    for (const [offset, bytes] of parts) head.set(Buffer.from(bytes, 'hex'), offset)
    const path = join(directory, 'head')
    writeFileSync(path, head)
    return headersOf(path)
  }

  test('a file of each format is recognised with its machine', () => {
    const machO: [number, string][] = [
      [0, 'cffaedfe0c000001'],
      [12, '02000000'],
      [16, '02000000'],
      // A first command of 16 bytes, then LC_CODE_SIGNATURE.
      [32, '0c00000010000000'],
      [48, '1d00000010000000'],
    ]
    expect(read(...machO)).toEqual({ format: 'mach-o', machine: 'arm64', isSigned: true })
    expect(read(...machO.slice(0, 4), [48, '0c00000010000000'])?.isSigned).toBe(false)
    const pe: [number, string][] = [
      [0, '4d5a'],
      [0x3c, '80000000'],
      [0x80, '504500006486'],
    ]
    expect(read(...pe)).toEqual({ format: 'pe', machine: 'x64' })
    expect(own).toMatchObject({ format: 'elf', machine: process.arch })
    expect(own.loader).toMatch(/^\/lib(64)?\/ld-/)
  })

  test('error: a file of another format, or with offsets behind its end, has no headers', () => {
    expect(read([0, '23212f62696e2f7368'])).toBeUndefined()
    expect(read([0, '4d5a'], [0x3c, 'ffffff7f'])).toBeUndefined()
    expect(read([0, 'cffaedfe0c000001'], [12, '02000000'], [16, 'ffffffff'])).toBeUndefined()
    expect(read([0, '7f454c460101'], [18, '3e00'])).toBeUndefined()
  })
})

describe('a release', () => {
  test('error: a target that fails is named with its reason, and the others are made', async () => {
    const outdir = join(directory, 'out')
    mkdirSync(outdir)
    const fails: Target = { ...own, name: 'fails', file: 'fails' }
    const other: Target = { ...own, name: 'other', file: 'other', format: 'pe' }
    const short: Target = { ...own, name: 'short', file: 'short' }
    // A file of the release before must not stay beside the new ones.
    writeFileSync(join(outdir, 'fails'), 'old')
    const lines: string[] = []
    const code = await release({
      targets: [fails, other, short, own],
      outdir,
      commit: undefined,
      out: (line) => void lines.push(line),
      async make({ name }, outfile) {
        if (name === 'fails') throw new Error('no such runtime')
        if (name === 'short') writeFileSync(outfile, readFileSync(executable).subarray(0, 100_000))
        else symlinkSync(executable, outfile)
      },
    })
    expect([code, lines]).toEqual([
      1,
      [
        'FAIL  fails: no such runtime',
        expect.stringMatching(/^FAIL {2}other: its headers are \{"format":"elf",.*"pe"/),
        'FAIL  short: 100000 bytes are too few for an executable',
        expect.stringMatching(/^ok {4}\S+ \(\d+ MB\), run: it names its version and commit$/),
        `1 of 4 in ${outdir}, with SHA256SUMS`,
        'not built: fails, other, short',
      ],
    ])
    const digest = new Bun.CryptoHasher('sha256').update(readFileSync(executable)).digest('hex')
    expect(readFileSync(join(outdir, 'SHA256SUMS'), 'utf8')).toBe(`${digest}  ${own.file}\n`)
    for (const file of ['fails', 'other', 'short'])
      expect([file, existsSync(join(outdir, file))]).toEqual([file, false])
  })

  test('error: an executable of another commit is refused', async () => {
    const lines: string[] = []
    const code = await release({
      targets: [own],
      outdir: join(directory, 'commit'),
      commit: { id: 'ab'.repeat(20), modified: false },
      out: (line) => void lines.push(line),
      make: async (_, outfile) => symlinkSync(executable, outfile),
    })
    expect([code, lines[0]]).toEqual([1, expect.stringContaining(`not ${'ab'.repeat(20)}`)])
  })
})

describe('the packages of a release', () => {
  const small = { file: 'small.txt', make: async () => 'small' }
  const packaged = async (packages: readonly Package[]) => {
    const lines: string[] = []
    const code = await release({
      targets: [own],
      outdir: join(directory, 'packages'),
      commit: undefined,
      out: (line) => void lines.push(line),
      make: async (_, outfile) => symlinkSync(executable, outfile),
      packagesOf: (built) => (built[0]?.target === own ? packages : []),
      key: readSigningKey(secretKey(), undefined),
    })
    return { code, lines, sums: readFileSync(join(directory, 'packages/SHA256SUMS'), 'utf8') }
  }

  test('they are listed and signed, and those of the release before are removed', async () => {
    const first = await packaged([small])
    expect([first.code, first.lines.slice(1, 3)]).toEqual([
      0,
      ['ok    small.txt (0 MB)', `signed: minisign -Vm SHA256SUMS -P ${publicKey}`],
    ])
    const digest = new Bun.CryptoHasher('sha256').update('small').digest('hex')
    expect(first.sums.split('\n').slice(1)).toEqual([`${digest}  small.txt`, ''])
    const signature = readFileSync(join(directory, 'packages/SHA256SUMS.minisig'), 'utf8')
    expect(commentOf(Buffer.from(first.sums), signature)).toBe(
      `turnpike ${manifest.version}, no commit, file:SHA256SUMS`,
    )
    const block = fencesOf('docs/install.md').find(({ text }) => text.startsWith('minisign -V'))
    if (Bun.which('minisign') !== null) {
      const run = Bun.spawnSync(['sh', '-ec', block?.text ?? 'exit 9'], {
        cwd: join(directory, 'packages'),
        env: { ...process.env, TURNPIKE_KEY: publicKey },
      })
      expect([run.exitCode, run.stdout.toString()]).toEqual([
        0,
        expect.stringMatching(/^Trusted comment: turnpike [\s\S]*: OK\nsmall.txt: OK\n$/m),
      ])
    }
    const fails = { file: 'fails.txt', make: () => Promise.reject(new Error('no library')) }
    const second = await packaged([fails])
    expect([second.code, second.lines[1], second.lines.at(-1)]).toEqual([
      1,
      'FAIL  fails.txt: no library',
      'not built: fails.txt',
    ])
    // An empty list has no file to remove.
    writeFileSync(join(directory, 'packages/SHA256SUMS'), '')
    expect((await packaged([])).code).toBe(0)
    expect(second.sums).toBe(`${first.sums.split('\n')[0]}\n`)
    expect(readdirSync(join(directory, 'packages')).sort()).toEqual(
      ['SHA256SUMS', 'SHA256SUMS.minisig', own.file].sort(),
    )
  })
})

describe('a signature', () => {
  const file = Buffer.from('a file')
  const key = readSigningKey(secretKey(), undefined)

  test('minisign verifies the file and the comment, and no other file', () => {
    const at = join(directory, 'signed')
    const text = signatureOf(file, 'a comment', key)
    expect(commentOf(file, text)).toBe('a comment')
    expect(commentOf(Buffer.from('another file'), text)).toBeUndefined()
    expect(commentOf(file, text.replace('a comment', 'b comment'))).toBeUndefined()
    if (Bun.which('minisign') === null) return
    writeFileSync(at, file)
    const verified = (signature: string) => {
      writeFileSync(`${at}.minisig`, signature)
      const run = Bun.spawnSync(['minisign', '-VHm', at, '-P', publicKey])
      return [run.exitCode, run.stdout.toString()]
    }
    expect(verified(text)).toEqual([0, expect.stringContaining('Trusted comment: a comment\n')])
    expect(verified(text.replace('a comment', 'b comment'))[0]).toBe(1)
  })

  test('a key with a password is read by it, as minisign reads it', () => {
    const text = secretKey('secret')
    expect(readSigningKey(text, 'secret').publicKey).toBe(publicKey)
    const wrong = () => readSigningKey(text, 'other')
    expect(wrong).toThrow('MINISIGN_PASSWORD is not its password')
    expect(() => readSigningKey(text, undefined)).toThrow('put that into MINISIGN_PASSWORD')
    if (Bun.which('minisign') === null) return
    const at = join(directory, 'encrypted')
    writeFileSync(`${at}.key`, text)
    writeFileSync(at, file)
    const run = Bun.spawnSync(['minisign', '-S', '-s', `${at}.key`, '-m', at, '-t', 'c'], {
      stdin: Buffer.from('secret\n'),
    })
    expect([run.exitCode, commentOf(file, readFileSync(`${at}.minisig`, 'utf8'))]).toEqual([0, 'c'])
  })

  test('error: what is no secret key of minisign is refused', () => {
    const [head = '', body = ''] = secretKey().split('\n')
    const bytes = Buffer.from(body, 'base64')
    const other = Buffer.from(bytes)
    other.write('Xx', 2, 'latin1')
    for (const each of [Buffer.alloc(0), bytes.subarray(1), other])
      expect(() => readSigningKey(`${head}\n${each.toString('base64')}\n`, undefined)).toThrow(
        'it is not a secret key of minisign',
      )
    const costly = Buffer.from(secretKey('secret').split('\n')[1] ?? '', 'base64')
    costly.writeBigUInt64LE(2n ** 40n, 46)
    expect(() => readSigningKey(`${head}\n${costly.toString('base64')}\n`, 'secret')).toThrow(
      'its password needs too much memory',
    )
  })
})

describe('a runtime from the registry', () => {
  const name = '@oven/bun-test'
  const [right, changed] = ['right', 'changed'].map(archive) as [Uint8Array, Uint8Array]
  let served = right
  let registry: ReturnType<typeof Bun.serve>
  const before = { ...process.env }
  beforeAll(() => {
    registry = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: answer })
    process.env.npm_config_registry = registry.url.href
    process.env.npm_config_cache = join(directory, 'npm')
    process.env.npm_config_fetch_retries = '0'
  })
  afterAll(async () => {
    for (const key of ['npm_config_registry', 'npm_config_cache', 'npm_config_fetch_retries']) {
      if (before[key] === undefined) delete process.env[key]
      else process.env[key] = before[key]
    }
    await registry.stop(true)
  })

  /** A registry that vouches for whatever it serves. */
  function answer(request: Request): Response {
    const { pathname } = new URL(request.url)
    if (pathname.endsWith('.tgz')) return new Response(served)
    if (decodeURIComponent(pathname) !== `/${name}`) return new Response('{}', { status: 404 })
    const dist = { tarball: `${registry.url}bun.tgz`, integrity: integrityOf(served) }
    return Response.json({
      name,
      'dist-tags': { latest: runtimeVersion },
      versions: { [runtimeVersion]: { name, version: runtimeVersion, dist } },
    })
  }

  /** An npm package with one executable. */
  function archive(content: string): Uint8Array {
    const at = join(directory, `package-${content}`)
    mkdirSync(join(at, 'package', 'bin'), { recursive: true })
    writeFileSync(join(at, 'package/package.json'), JSON.stringify({ name, version: '1.4.4' }))
    writeFileSync(join(at, 'package/bin/bun'), content)
    const run = Bun.spawnSync(['tar', '-czf', join(at, 'bun.tgz'), '-C', at, 'package'])
    if (run.exitCode !== 0) throw new Error(run.stderr.toString())
    return readFileSync(join(at, 'bun.tgz'))
  }

  function integrityOf(bytes: Uint8Array): string {
    return `sha512-${new Bun.CryptoHasher('sha512').update(bytes).digest('base64')}`
  }

  const wanted = { package: name, executable: 'bin/bun', integrity: integrityOf(right) }

  test('a runtime is unpacked when its archive has the stored hash', async () => {
    const path = await fetchRuntime(wanted, join(directory, 'runtime'))
    expect(readFileSync(path, 'utf8')).toBe('right')
  })

  test('attack: an archive that only the registry vouches for is refused and not unpacked', async () => {
    served = changed
    // A cache would answer with the archive of the test above.
    process.env.npm_config_cache = join(directory, 'npm-empty')
    const at = join(directory, 'refused')
    const outcome = fetchRuntime(wanted, at)
    expect(await outcomeOf(outcome)).toThrow(`${name} is not the expected archive: sha512-`)
    expect(existsSync(join(at, 'package'))).toBe(false)
  })

  test('error: a missing package is reported with the reason of npm', async () => {
    const outcome = fetchRuntime({ ...wanted, package: '@oven/bun-none' }, join(directory, 'none'))
    expect(await outcomeOf(outcome)).toThrow(/npm pack @oven\/bun-none@\S+ npm (error|ERR!).*404/)
  })
})
