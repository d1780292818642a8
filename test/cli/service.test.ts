import { afterAll, describe, expect, test } from 'bun:test'
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CommandError } from '../../src/cli/Command'
import { formatUnit, service, type Unit } from '../../src/cli/operate/service'
import { exitCode } from '../harness/command'
import { executable } from '../harness/executable'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-service-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const analyze = process.env.SYSTEMD_ANALYZE ?? Bun.which('systemd-analyze') ?? ''
if (analyze === '')
  process.stderr.write(
    'SKIPPED: the tests of units need systemd-analyze (apt-get install systemd)\n',
  )

/** The paths of the documentation. */
const usual: Unit = {
  program: ['/usr/local/bin/turnpike'],
  file: '/etc/turnpike/merchants.toml',
  dataDir: '/var/lib/turnpike',
  stopSeconds: 30,
  hasLowPort: false,
}

/** Values of a key of a unit, in their order. */
function valuesOf(text: string, key: string): string[] {
  return text
    .split('\n')
    .flatMap((line) => (line.startsWith(`${key}=`) ? [line.slice(key.length + 1)] : []))
}

let serial = 0

/** What `turnpike service` prints beside a file with these lines of `[service]`. */
function print(lines: string, flags: object = {}) {
  const cwd = join(directory, `cwd-${++serial}`)
  mkdirSync(cwd)
  writeFileSync(join(cwd, 'merchants.toml'), `[service]\n${lines}\n`)
  return printIn(cwd, flags)
}

async function printIn(
  cwd: string,
  flags: Partial<Parameters<typeof service>[0]> & { program?: readonly string[] },
) {
  const written: string[] = []
  const warnings: string[] = []
  const { program = ['/usr/local/bin/turnpike'], ...options } = flags
  const run = (given: Parameters<typeof service>[0]) => service(given, { cwd, program })
  const code = await exitCode(run, {
    ...options,
    env: { PORT: '8080' },
    out: (line) => void written.push(`${line}\n`),
    err: (line) => void warnings.push(line),
  })
  return { code, text: written.join(''), warnings: warnings.join('\n'), cwd }
}

describe('the command', () => {
  test('the unit names this program, the file, the data and the time to stop', async () => {
    const home = join(directory, 'home')
    mkdirSync(home)
    writeFileSync(join(home, 'merchants.toml'), '[service]\nstop_seconds = 90\n')
    const run = Bun.spawnSync([executable, 'service', '--data', '/var/lib/turnpike/shop'], {
      cwd: home,
      env: {},
    })
    const text = run.stdout.toString()
    expect([run.exitCode, valuesOf(text, 'ExecStart')]).toEqual([
      0,
      [`${executable} serve --config ${home}/merchants.toml --data /var/lib/turnpike/shop`],
    ])
    expect(valuesOf(text, 'TimeoutStopSec')).toEqual(['100'])
    expect(valuesOf(text, 'StateDirectory')).toEqual(['turnpike/shop'])
    expect(valuesOf(text, 'EnvironmentFile')).toEqual([`-${home}/turnpike.env`])
  })

  test('a program that the service cannot see is named', async () => {
    expect((await print('')).warnings).toBe('')
    const { code, warnings } = await print('', { program: ['/tmp/turnpike'] })
    expect([code, warnings]).toEqual([
      0,
      'turnpike: /tmp/turnpike is a temporary file, which the service does not see: move it, then print the unit again',
    ])
    const { text, warnings: home } = await print('', { program: ['/home/a/turnpike'] })
    expect(home).toContain('/home/a/turnpike is in a home directory')
    // Otherwise no account could run it.
    expect(valuesOf(text, 'ProtectHome')).toEqual(['read-only'])
  })

  test('only a port below 1024 gets a capability', async () => {
    const capabilities = ({ text }: { text: string }) => [
      valuesOf(text, 'AmbientCapabilities'),
      valuesOf(text, 'CapabilityBoundingSet'),
      valuesOf(text, 'PrivateUsers'),
    ]
    const none = [[''], [''], ['yes']]
    const bind = [['CAP_NET_BIND_SERVICE'], ['CAP_NET_BIND_SERVICE'], []]
    expect(capabilities(await print(''))).toEqual(none)
    expect(capabilities(await print(`listen = "0.0.0.0:\${PORT}"`))).toEqual(none)
    expect(capabilities(await print('listen = "0.0.0.0:1024"'))).toEqual(none)
    expect(capabilities(await print('listen = "0.0.0.0:1023"'))).toEqual(bind)
    const domain = await print('', { domain: 'api.example.com,b.example.com' })
    expect(capabilities(domain)).toEqual(bind)
    expect(valuesOf(domain.text, 'ExecStart')[0]).toEndWith(
      ' --domain api.example.com,b.example.com',
    )
  })

  test('an account of the machine owns its own data directory', async () => {
    const { text } = await print('', { data: '/srv/turnpike', user: 'turnpike' })
    expect(valuesOf(text, 'User')).toEqual(['turnpike'])
    expect(valuesOf(text, 'ReadWritePaths')).toEqual(['/srv/turnpike'])
    expect([valuesOf(text, 'DynamicUser'), valuesOf(text, 'StateDirectory')]).toEqual([[], []])
    const below = await print('', { user: 'turnpike' })
    expect(valuesOf(below.text, 'StateDirectory')).toEqual(['turnpike'])
  })

  test('error: options with which the service would not start are refused, and nothing is printed', async () => {
    const cases: [string, object, string][] = [
      ['', { data: '/srv/turnpike' }, '/srv/turnpike is not below /var/lib/'],
      ['', { data: '/var/lib/../srv' }, '/var/srv is not below /var/lib/'],
      ['', { data: '/var/lib' }, '/var/lib is not below /var/lib/'],
      ['', { user: 'a\nUser=root' }, '--user is the name of an account'],
      ['', { domain: 'localhost' }, '--domain is a DNS name'],
      ['', { domain: 'a.example.com --data /' }, '--domain is a DNS name'],
      ['', { program: ['/opt/"a"/turnpike'] }, 'no program with a quote or backslash in its path'],
      ['', { file: 'other.toml' }, 'cannot be read: name the file with --config'],
      ['listen = 4020', {}, 'listen must be host:port'],
      ['stop_seconds = -1', {}, 'stop_seconds must be'],
      ['secret = "abc', {}, 'is not valid TOML: run turnpike check'],
    ]
    for (const [lines, flags, message] of cases) {
      const { code, text, warnings } = await print(lines, flags)
      expect([code, text, warnings]).toEqual([1, '', expect.stringContaining(message)])
      expect(warnings).not.toContain('abc')
    }
    const { cwd } = await print('')
    mkdirSync(join(cwd, 'data'))
    writeFileSync(join(cwd, 'data/turnpike.sqlite'), '')
    expect((await printIn(cwd, {})).warnings).toContain(
      'data has the keys and payments of earlier starts',
    )
    expect((await printIn(cwd, { data: '/var/lib/turnpike' })).code).toBe(0)
    expect(() => formatUnit({ ...usual, file: '/etc/a\nUser=root/b' })).toThrow(CommandError)
  })
})

test('the sample unit is what the command prints', async () => {
  const sample = await Bun.file(join(import.meta.dir, '../../deploy/turnpike.service')).text()
  expect(sample).toBe(formatUnit(usual))
})

describe.skipIf(analyze === '')('systemd', () => {
  /** What systemd-analyze says of a unit, by its exit code and its text. */
  function analyzed(text: string, ...args: readonly string[]) {
    const path = join(directory, `unit-${++serial}.service`)
    writeFileSync(path, text)
    const run = Bun.spawnSync([analyze, ...args, path], { env: { LC_ALL: 'C', PATH: '/usr/bin' } })
    return { code: run.exitCode, said: run.stderr.toString() }
  }

  const shipped = ['DynamicUser', 'User', 'domain', 'credential'] as const
  const units: Readonly<Record<(typeof shipped)[number], string>> = {
    DynamicUser: formatUnit({ ...usual, program: [executable] }),
    User: formatUnit({
      ...usual,
      program: [executable],
      user: 'turnpike',
      dataDir: '/srv/a b/50%',
    }),
    domain: formatUnit({
      ...usual,
      program: [executable],
      domain: 'a.example.com',
      hasLowPort: true,
    }),
    credential: formatUnit({ ...usual, program: [executable] }).replace(/^#([A-Z])/gm, '$1'),
  }

  for (const name of shipped)
    test(`systemd accepts the unit and finds little exposed: ${name}`, async () => {
      expect(analyzed(units[name], 'verify')).toEqual({ code: 0, said: '' })
      // 1.4 of 10, and 1.8 with a capability.
      const exposure = ['security', '--offline=true', '--threshold=18', '--no-pager']
      expect(analyzed(units[name], ...exposure).code).toBe(0)
    })

  test('systemd reads a path with blanks and signs as it is', async () => {
    const odd = join(directory, 'a b $d %e')
    mkdirSync(odd)
    const program = join(odd, 'turnpike')
    copyFileSync('/bin/true', program)
    chmodSync(program, 0o755)
    const unit = { ...usual, program: [program], file: join(odd, 'a "b" \\c.toml') }
    expect(analyzed(formatUnit(unit), 'verify')).toEqual({ code: 0, said: '' })
    rmSync(program)
    expect(analyzed(formatUnit(unit), 'verify').said).toContain('turnpike')
  })

  test('error: an unknown key and an open unit are found by these checks', async () => {
    const text = units.DynamicUser
    expect(analyzed(text.replace('UMask=', 'UMusk='), 'verify').said).toContain('UMusk')
    const open = text.replace('NoNewPrivileges=yes\n', '').replace('ProtectSystem=strict\n', '')
    const exposed = open.replace('DynamicUser=yes\n', '').replace('PrivateUsers=yes\n', '')
    const code = analyzed(exposed, 'security', '--offline=true', '--threshold=18').code
    expect(code).not.toBe(0)
  })
})
