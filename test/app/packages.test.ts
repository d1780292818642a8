import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { chmodSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { rootCertificates } from 'node:tls'
import manifest from '../../package.json'
import { runProgram } from '../../src/build'
import { formatUnit } from '../../src/cli/operate/service'
import { compose, defaults } from '../../src/cli/sell/init'
import { account } from '../../src/demo/accounts'
import type { Chain } from '../../src/demo/chains'
import { ar, type Entry, fileInAr, sha256, tar } from '../../src/release/archive'
import { libraryOf, libraryVersion } from '../../src/release/c-library'
import { architectures, debianPackage } from '../../src/release/deb'
import { formula } from '../../src/release/formula'
import { executablePackage, npmFileOf, npmNameOf } from '../../src/release/npm'
import { type Built, packagesOf } from '../../src/release/packages'
import { type Target, targets } from '../../src/release/targets'
import { startChains } from '../harness/chains'
import { configOf, payout } from '../harness/config'
import { parseDockerfile, valuesOf } from '../harness/dockerfile'
import { executable } from '../harness/executable'
import { outcomeOf } from '../harness/outcome'
import { temporary, until } from '../harness/settlement'

/** The packages of a release, for this machine, by the tools that install them. */

const directory = temporary()
const at = (...names: readonly string[]) => join(directory.path, ...names)
const root = join(import.meta.dir, '../..')
const { version } = manifest
/** The target that is this machine. */
const own = targets.find(({ name }) => name === `linux-${process.arch}`) as Target
const commit = { id: 'ab'.repeat(20), modified: false }
const has = (program: string) => Bun.which(program) !== null
for (const program of ['dpkg', 'minisign', 'skopeo', 'unshare'])
  if (!has(program)) process.stderr.write(`SKIPPED: a test of the packages needs ${program}\n`)

/** Runs a program to its end; throws when it fails. */
function run(command: readonly string[], env: Record<string, string | undefined> = process.env) {
  const child = Bun.spawnSync([...command], { env, cwd: directory.path, stdin: 'ignore' })
  if (child.exitCode !== 0) throw new Error(`${command.join(' ')}: ${child.stderr}${child.stdout}`)
  return child.stdout.toString()
}

/** tar's options to print a file without the rest of the archive, which may be an executable. */
const first = ['--occurrence=1', '-xOzf']

/** The C library of this machine, which in a release is a package of Debian. */
async function ownLibrary(): Promise<Entry[]> {
  const lines = run(['ldd', executable]).matchAll(/(\/\S+) \(0x/g)
  return [...lines].map(([, path = '']) => ({
    path: path.slice(1),
    mode: 0o755,
    content: readFileSync(path),
  }))
}

const packages = (built: readonly Built[], url?: string) =>
  packagesOf(built, { commit, url, libraryOf: ownLibrary })

let files: string[]
let chain: Chain
beforeAll(async () => {
  const [started] = await startChains(configOf(compose(defaults)).networks)
  chain = started as Chain
  // The image has the executable itself. To pack, to hash and to unpack its 130 MB for npm and Debian,
  // too, would take seconds of processor time: they have a file that becomes it.
  writeFileSync(at('starter'), `#!/bin/sh\nexec ${executable} "$@"\n`)
  const madeOf = (path: string) => packages([{ target: own, path, digest: '' }])
  const whole = madeOf(executable)
  const made = madeOf(at('starter')).map((small, index) =>
    small.file.endsWith('.oci.tar') ? (whole[index] ?? small) : small,
  )
  for (const { file, make } of made) await Bun.write(at(file), await make())
  files = made.map(({ file }) => file)
})
afterAll(async () => {
  await chain?.stop()
  directory.remove()
})

test('a release has the packages that its executables are enough for', () => {
  const machine = architectures[own.machine]
  expect(files).toEqual([
    `turnpike-${version}.tgz`,
    `turnpike-${own.name}-${version}.tgz`,
    `turnpike_${version}_${machine}.deb`,
    `turnpike-${version}.oci.tar`,
  ])
  const all = targets.map((target) => ({ target, path: '/nowhere', digest: target.name }))
  const others = packages(all, 'https://example.com').map(({ file }) => file)
  expect(others).toHaveLength(1 + targets.length + 2 + 1 + 1)
  expect(others).toContain('turnpike.rb')
})

test('the same executables give the same bytes', async () => {
  const digests = async () => {
    writeFileSync(at('small'), 'executable')
    const made = packages([{ target: own, path: at('small'), digest: '' }])
    return Promise.all(made.map(async ({ make }) => sha256(await make())))
  }
  expect(await digests()).toEqual(await digests())
})

describe('the npm package', () => {
  /** Only node and npm are on PATH, and the shell that npm needs. */
  const env = () => {
    mkdirSync(at('bin'), { recursive: true })
    for (const name of ['node', 'npm', 'npx', 'sh'])
      if (!existsSync(at('bin', name))) symlinkSync(Bun.which(name) ?? '', at('bin', name))
    return {
      PATH: at('bin'),
      HOME: at('home'),
      npm_config_registry: registry.url.href,
      npm_config_audit: 'false',
      npm_config_update_notifier: 'false',
    }
  }

  /** A registry with the packages of all executables, of which only ours can be downloaded. */
  let registry: ReturnType<typeof Bun.serve>
  const downloaded: string[] = []
  beforeAll(() => {
    const known = targets.map((target) => {
      const file = npmFileOf(npmNameOf(target))
      if (target !== own) writeFileSync(at(file), executablePackage(target, Buffer.from('other')))
      return { file, name: npmNameOf(target) }
    })
    registry = Bun.serve({
      hostname: '127.0.0.1',
      port: 0,
      fetch(request) {
        const path = decodeURIComponent(new URL(request.url).pathname).slice(1)
        if (known.some(({ file }) => file === path)) {
          downloaded.push(path)
          return new Response(Bun.file(at(path)))
        }
        const file = known.find(({ name }) => name === path)?.file
        if (file === undefined) return new Response('{}', { status: 404 })
        const described = JSON.parse(run(['tar', ...first, file, 'package/package.json']))
        const bytes = readFileSync(at(file))
        const digest = new Bun.CryptoHasher('sha512').update(bytes).digest('base64')
        const dist = { tarball: `${registry.url}${file}`, integrity: `sha512-${digest}` }
        return Response.json({
          name: path,
          'dist-tags': { latest: version },
          versions: { [version]: { ...described, dist } },
        })
      },
    })
  })
  afterAll(() => registry.stop(true))

  test('npx sells an API where there is only Node.js, and SIGTERM ends it', async () => {
    const npx = (...args: readonly string[]) => [
      ...[at('bin/npx'), '--yes', `./turnpike-${version}.tgz`],
      ...args,
    ]
    /** Not `run`: this process has the registry, which must answer meanwhile. */
    const said = async (...args: readonly string[]) => {
      const { out, problems, code } = await runProgram(npx(...args), {
        env: env(),
        cwd: directory.path,
      })
      expect([problems, code]).toEqual(['', 0])
      return out
    }
    const api = ['--upstream', 'http://127.0.0.1:8080', '--rpc', chain.url]
    const terms = ['--price', '0.005', '--networks', 'base', '--payout', payout]
    expect(await said('version')).toStartWith(`turnpike ${version}`)
    expect(await said('init', ...api, ...terms)).toContain('\n  npx turnpike serve\n')
    expect(downloaded).toEqual([npmFileOf(npmNameOf(own))])
    const text = readFileSync(at('merchants.toml'), 'utf8')
    const served = /^listen = .*$/m.test(text)
      ? text.replace(/^listen = .*$/m, 'listen = "127.0.0.1:0"')
      : text.replace('[service]', '[service]\nlisten = "127.0.0.1:0"')
    writeFileSync(at('merchants.toml'), served)
    const server = Bun.spawn(npx('serve'), {
      env: { ...env(), RELAYER_KEYS: account(0).privateKey },
      cwd: directory.path,
      stdin: 'ignore',
      stdout: 'ignore',
      stderr: 'pipe',
    })
    const url = await addressOf(server.stderr)
    await until(async () => (await fetch(`${url}/healthz`)).status === 200)
    const answer = await fetch(`${url}/m/api/hello`)
    expect([answer.status, answer.headers.has('payment-required')]).toEqual([402, true])
    server.kill('SIGTERM')
    await server.exited
    // npm ends first, without telling the program.
    await until(() =>
      fetch(url).then(
        () => false,
        () => true,
      ),
    )
  })

  /** A command whose executable is this script, and how it runs. */
  function command(name: string, script: string, installed: readonly string[] = [own.name]) {
    const modules = at(name, 'node_modules')
    mkdirSync(join(modules, 'turnpike'), { recursive: true })
    run([
      'tar',
      '-xzf',
      `turnpike-${version}.tgz`,
      '--strip-components=1',
      '-C',
      join(modules, 'turnpike'),
    ])
    for (const each of installed) {
      const bin = join(modules, '@turnpike', each, 'bin')
      mkdirSync(bin, { recursive: true })
      writeFileSync(join(bin, 'turnpike'), `#!/bin/sh\n# ${each}\n${script}\n`)
      chmodSync(join(bin, 'turnpike'), 0o755)
    }
    return [Bun.which('node') ?? '', join(modules, 'turnpike/bin/turnpike.mjs')]
  }

  test('arguments, exit code and the signal that ends the program are passed on, and crashes are not reported', async () => {
    const given = Bun.spawnSync([...command('code', 'printf "<%s>" "$@"; exit 7'), 'a b', '', '$c'])
    expect([given.stdout.toString(), given.exitCode]).toEqual(['<a b><><$c>', 7])
    const script = 'echo "$BUN_ENABLE_CRASH_REPORTING $TURNPIKE_COMMAND"'
    const env = { npm_command: undefined, BUN_ENABLE_CRASH_REPORTING: undefined }
    const told = Bun.spawnSync(command('told', script), { env: { ...process.env, ...env } })
    expect(told.stdout.toString()).toBe('0 turnpike\n')
    const killed = Bun.spawn(command('killed', 'kill -KILL $$'))
    await killed.exited
    expect(killed.signalCode).toBe('SIGKILL')
  })

  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    test(`${signal} reaches the program`, async () => {
      const script = `trap 'echo ended; exit 3' ${signal.slice(3)}; echo ready; while :; do sleep 0.05; done`
      const child = Bun.spawn(command(signal, script), { stdout: 'pipe' })
      let said = ''
      for await (const part of child.stdout) {
        said += new TextDecoder().decode(part)
        if (said === 'ready\n') child.kill(signal)
      }
      expect([said, await child.exited]).toEqual(['ready\nended\n', 3])
    })

  test('of two C libraries the one of Node.js is chosen', () => {
    const both = [own.name, `${own.name}-musl`]
    const { stdout } = Bun.spawnSync(command('both', 'sed -n 2p "$0"', both))
    expect(stdout.toString()).toBe(`# ${own.name}\n`)
  })

  test('error: a system without an executable and a package that is not there are named', () => {
    const outcome = (words: readonly string[]) => {
      const { exitCode, stderr } = Bun.spawnSync([...words])
      return [exitCode, stderr.toString()]
    }
    const none = command('none', '', [])
    expect(outcome(none)).toEqual([
      1,
      expect.stringMatching(/^turnpike: @turnpike\/\S+ or \S+ is not installed.*omit=optional/),
    ])
    const path = at('none/node_modules/turnpike/package.json')
    const text = readFileSync(path, 'utf8')
    writeFileSync(path, text.replaceAll(`-${process.arch}`, '-mips'))
    expect(outcome(none)).toEqual([
      1,
      expect.stringContaining(`there is no executable for linux-${process.arch}, only @turnpike/`),
    ])
    const broken = command('broken', '')
    chmodSync(at('broken/node_modules/@turnpike', own.name, 'bin/turnpike'), 0o644)
    expect(outcome(broken)).toEqual([1, expect.stringContaining('does not start (')])
  })

  test('no package runs a script at its installation, and each names its system', () => {
    for (const file of [files[0] ?? '', ...targets.map((target) => npmFileOf(npmNameOf(target)))]) {
      const described = JSON.parse(run(['tar', ...first, file, 'package/package.json']))
      expect([file, described.scripts, described.version]).toEqual([file, undefined, version])
    }
    const musl = targets.find(({ name }) => name === 'linux-arm64-musl') as Target
    writeFileSync(at('musl.tgz'), executablePackage(musl, Buffer.from('')))
    expect(JSON.parse(run(['tar', ...first, 'musl.tgz', 'package/package.json']))).toMatchObject({
      name: '@turnpike/linux-arm64-musl',
      os: ['linux'],
      cpu: ['arm64'],
      libc: ['musl'],
    })
    const [packed] = JSON.parse(
      run([Bun.which('npm') ?? '', 'pack', '--dry-run', '--json', `./${files[0]}`], env()),
    )
    expect(packed).toMatchObject({ name: 'turnpike', version, filename: files[0] })
  })
})

/** The address that a server prints. */
async function addressOf(output: ReadableStream<Uint8Array>): Promise<string> {
  let said = ''
  for await (const part of output) {
    said += new TextDecoder().decode(part)
    const url = /listens on (\S+)/.exec(said)?.[1]
    if (url !== undefined) return url
  }
  throw new Error(`it did not start: ${said}`)
}

describe.if(has('dpkg'))('the Debian package', () => {
  const place = at('root')
  /** Runs dpkg on another directory than `/`, where the scripts see systemd. */
  function dpkg(...args: readonly string[]) {
    const log = at('systemctl.log')
    mkdirSync(join(place, 'run/systemd/system'), { recursive: true })
    mkdirSync(join(place, 'var/lib/dpkg/info'), { recursive: true })
    mkdirSync(join(place, 'var/lib/dpkg/updates'), { recursive: true })
    writeFileSync(join(place, 'var/lib/dpkg/status'), '', { flag: 'a' })
    mkdirSync(at('stub'), { recursive: true })
    writeFileSync(at('stub/systemctl'), `#!/bin/sh\necho "$@" >>${log}\n`)
    chmodSync(at('stub/systemctl'), 0o755)
    writeFileSync(log, '')
    const chosen = ['--force-script-chrootless', '--force-depends', '--force-not-root']
    run(['dpkg', `--root=${place}`, ...chosen, `--log=${at('dpkg.log')}`, ...args], {
      ...process.env,
      PATH: `${at('stub')}:${process.env.PATH}:/usr/sbin:/sbin`,
    })
    return readFileSync(log, 'utf8').trimEnd().split('\n')
  }

  test('it installs the executable and its unit, restarts after an upgrade, and goes', () => {
    const deb = at(files[2] ?? '')
    expect(run(['dpkg-deb', '--field', deb, 'Package', 'Version', 'Architecture', 'Depends'])).toBe(
      `Package: turnpike\nVersion: ${version}\nArchitecture: ${architectures[own.machine]}\nDepends: libc6 (>= 2.17)\n`,
    )
    expect(dpkg('--install', deb)).toEqual(['--system daemon-reload'])
    expect(run([join(place, 'usr/bin/turnpike'), 'version'], {})).toStartWith(`turnpike ${version}`)
    expect(readFileSync(join(place, 'usr/lib/systemd/system/turnpike.service'), 'utf8')).toBe(
      formatUnit({
        program: ['/usr/bin/turnpike'],
        file: '/etc/turnpike/merchants.toml',
        dataDir: '/var/lib/turnpike',
        stopSeconds: 30,
        hasLowPort: false,
      }),
    )
    expect(dpkg('--verify', 'turnpike')).toEqual([''])
    const kept = join(place, 'var/lib/turnpike/relayer.key')
    mkdirSync(dirname(kept), { recursive: true })
    writeFileSync(kept, 'key')
    const reload = '--system daemon-reload'
    writeFileSync(at('next.deb'), debianPackage(own.machine, Buffer.from('next')))
    const upgraded = [reload, reload, reload, 'try-restart turnpike.service']
    expect(dpkg('--install', at('next.deb'))).toEqual(upgraded)
    expect(dpkg('--purge', 'turnpike')).toEqual([
      ...[reload, 'disable --now turnpike.service', reload, reload],
    ])
    expect(existsSync(join(place, 'usr/bin/turnpike'))).toBe(false)
    expect(readFileSync(kept, 'utf8')).toBe('key')
  })
})

describe('the image', () => {
  type Described = { digest: string; mediaType: string; size: number }
  const blob = (digest: string) => at('image/blobs', digest.replace(':', '/'))
  const json = (digest: string) => JSON.parse(readFileSync(blob(digest), 'utf8'))
  let manifests: (Described & { platform: object })[]
  beforeAll(() => {
    mkdirSync(at('image'))
    run(['tar', '-xf', files[3] ?? '', '-C', at('image')])
    const index = JSON.parse(readFileSync(at('image/index.json'), 'utf8'))
    manifests = json(index.manifests[0].digest).manifests
  })

  test('it does what the image of deploy/Dockerfile does', () => {
    const last = parseDockerfile(readFileSync(join(root, 'deploy/Dockerfile'), 'utf8')).at(-1)
    const value = (name: string) => valuesOf(last, name)[0] ?? ''
    expect(manifests.map(({ platform }) => platform)).toEqual([
      { architecture: architectures[own.machine], os: 'linux' },
    ])
    const { layers, config: described } = json(manifests[0]?.digest ?? '')
    const { config, rootfs } = json(described.digest)
    const unpacked = (layers as Described[]).map(({ digest }) =>
      sha256(Bun.gunzipSync(readFileSync(blob(digest)))),
    )
    expect(rootfs.diff_ids).toEqual(unpacked.map((digest) => `sha256:${digest}`))
    const [times = '', probe = ''] = value('HEALTHCHECK').split(' CMD ')
    const seconds = (name: string) => Number(new RegExp(`${name}=(\\d+)s`).exec(times)?.[1]) * 1e9
    expect(config).toMatchObject({
      User: value('USER'),
      WorkingDir: value('WORKDIR'),
      Volumes: { [value('VOLUME')]: {} },
      ExposedPorts: { [`${value('EXPOSE')}/tcp`]: {} },
      Entrypoint: JSON.parse(value('ENTRYPOINT')),
      Cmd: JSON.parse(value('CMD')),
      Healthcheck: {
        Test: ['CMD', ...JSON.parse(probe)],
        Interval: seconds('interval'),
        Timeout: seconds('timeout'),
        StartPeriod: seconds('start-period'),
      },
    })
    expect(config.Labels['org.opencontainers.image.revision']).toBe(commit.id)
  })

  test.if(has('skopeo'))('skopeo reads every part of it', () => {
    run(['skopeo', 'copy', '--all', `oci-archive:${files[3]}:${version}`, 'dir:copied'])
    expect(JSON.parse(readFileSync(at('copied/manifest.json'), 'utf8')).manifests).toEqual(
      manifests,
    )
  })

  const canEnter = process.getuid?.() === 0 && has('unshare')
  test.if(canEnter)('its files are enough to sell, as the account without rights', async () => {
    const place = at('container')
    mkdirSync(place)
    for (const { digest } of json(manifests[0]?.digest ?? '').layers)
      run(['tar', '-xzpf', blob(digest), '-C', place])
    for (const name of ['dev', 'proc']) mkdirSync(join(place, name))
    const text = readFileSync(at('merchants.toml'), 'utf8')
    writeFileSync(join(place, 'etc/turnpike/merchants.toml'), text)
    const enter = `mount --rbind /dev ${place}/dev && mount -t proc proc ${place}/proc &&
      exec chroot --userspec=65532:65532 ${place} /usr/local/bin/turnpike serve \
      --config /etc/turnpike/merchants.toml --data /var/lib/turnpike`
    const child = Bun.spawn(['unshare', '--mount', 'sh', '-c', enter], {
      env: { PATH: process.env.PATH ?? '', RELAYER_KEYS: account(0).privateKey },
      stdin: 'ignore',
      stdout: 'ignore',
      stderr: 'pipe',
    })
    const url = await addressOf(child.stderr)
    await until(async () => (await fetch(`${url}/healthz`)).status === 200)
    expect((await fetch(`${url}/m/api/hello`)).status).toBe(402)
    // A supervisor may send it to the group and to the process: paid requests still end before.
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGTERM'] as const) child.kill(signal)
    expect(await child.exited).toBe(0)
    // Without certificates of the system the runtime trusts those that it brings.
    expect(rootCertificates.length).toBeGreaterThan(100)
  })
})

describe('the C library of the image', () => {
  const name = `libc6_${libraryVersion}_arm64.deb`
  const arm = targets.find((target) => target.name === 'linux-arm64') as Target
  let digest: string
  beforeAll(() => {
    const lib = 'lib/aarch64-linux-gnu'
    const names = ['libc.so.6', 'libm.so.6', 'libdl.so.2', 'libpthread.so.0', 'libresolv.so.2']
    const content = [...names, 'ld-linux-aarch64.so.1'].map((each) => `${lib}/${each}`)
    const part = (paths: readonly string[]) => {
      const entries = paths.map((path) => ({ path: `./${path}`, mode: 0o644, content: path }))
      writeFileSync(at('part.tar'), tar(entries))
      run(['xz', '--force', 'part.tar'])
      return readFileSync(at('part.tar.xz'))
    }
    mkdirSync(at('debs'))
    const deb = ar({
      'debian-binary': '2.0\n',
      'control.tar.xz': part(['control']),
      'data.tar.xz': part([...content, 'usr/share/doc/libc6/copyright', 'usr/bin/ldd']),
    })
    writeFileSync(at('debs', name), deb)
    digest = sha256(deb)
  })

  test('the loader, the libraries and the license are taken from the package of Debian', async () => {
    const entries = await libraryOf(arm, { packages: at('debs'), digest })
    expect(entries.map(({ path, content }) => [path, `${content}`.split('\n')[0]])).toEqual([
      ['lib/ld-linux-aarch64.so.1', 'lib/aarch64-linux-gnu/ld-linux-aarch64.so.1'],
      ...['c.so.6', 'm.so.6', 'dl.so.2', 'pthread.so.0', 'resolv.so.2'].map((each) => [
        `lib/aarch64-linux-gnu/lib${each}`,
        `lib/aarch64-linux-gnu/lib${each}`,
      ]),
      ['usr/share/doc/libc6/copyright', 'usr/share/doc/libc6/copyright'],
      ['var/lib/dpkg/status.d/libc6', 'control'],
      ['etc/os-release', expect.stringContaining('Debian')],
    ])
    expect(own.loader?.slice(1)).toBe(
      (await ownLibrary()).find(({ path }) => path.includes('ld-linux'))?.path,
    )
  })

  test('attack: a changed package is refused', async () => {
    const outcome = libraryOf(arm, { packages: at('debs') })
    expect(await outcomeOf(outcome)).toThrow(`${name} is not the expected package: ${digest}, not `)
  })

  test('error: a file that is no ar archive has no parts', () => {
    const archive = readFileSync(at('debs', name))
    expect(fileInAr(archive, 'debian-binary')?.toString()).toBe('2.0\n')
    expect(fileInAr(archive, 'other')).toBeUndefined()
    expect(fileInAr(Buffer.from('no archive'.repeat(20)), 'other')).toBeUndefined()
    expect(() => tar([{ path: 'x'.repeat(100), mode: 0 }])).toThrow('no name for a tar archive')
  })
})

test('the Homebrew formula has the address and the checksum of each executable', () => {
  const digests = {
    'darwin-arm64': 'd'.repeat(64),
    'linux-x64': 'e'.repeat(64),
    'linux-arm64': 'f'.repeat(64),
  }
  const text = formula('https://example.com/v1', digests)
  for (const [name, digest] of Object.entries(digests))
    expect(text).toMatch(
      new RegExp(`url "https://example.com/v1/turnpike-${name}"\\s+sha256 "${digest}"`),
    )
  writeFileSync(at('turnpike.rb'), text)
  if (has('ruby')) expect(run(['ruby', '-c', 'turnpike.rb'])).toContain('Syntax OK')
})
