import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { portFault } from '../../src/app/https'
import { parseArguments } from '../../src/cli/arguments'
import { commands } from '../../src/cli/commands'
import { check } from '../../src/cli/sell/check'
import { readHttps } from '../../src/cli/sell/https'
import { format, parseConfig } from '../../src/config/merchants'
import { exitCode } from '../harness/command'
import { small } from '../harness/config'
import { read } from '../harness/sources'

/** What `--domain` takes, and what it changes in the file. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-flags-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const env = { PAYOUT: '0x1111111111111111111111111111111111111111', ONE_KEY: 'k'.repeat(20) }
const domain = 'api.example.com'

describe('the names of --domain', () => {
  const domainsOf = (text: string) => readHttps({ domain: text }, {})?.domains

  test('domains are lower case, ASCII and each once', () => {
    expect(domainsOf('API.example.com, b.example.com,api.example.com.')).toEqual([
      'api.example.com',
      'b.example.com',
    ])
    expect(domainsOf('b\u00fccher.example')).toEqual(['xn--bcher-kva.example'])
  })

  for (const text of [
    '',
    'localhost',
    '192.0.2.1',
    '[2001:db8::1]',
    '*.example.com',
    'https://api.example.com',
    'api.example.com:443',
    'api.example.com/x',
    'a_b.example.com',
    '-a.example.com',
    'api..example.com',
    'a b.example.com',
    `${'a'.repeat(64)}.example.com`,
    'api.example.com,',
  ])
    test(`error: ${JSON.stringify(text)} is refused`, () => {
      expect(() => domainsOf(text)).toThrow(/^--domain ".*" is no DNS name: write a name such as/)
    })

  test('--domain can be repeated', () => {
    const argv = ['serve', '--domain', 'a.example.com', '--domain', 'b.example.com']
    const parsed = parseArguments(argv, commands)
    expect(parsed).toMatchObject({
      kind: 'run',
      args: { values: { domain: 'a.example.com,b.example.com' } },
    })
  })
})

describe('the other flags and variables', () => {
  test('the ports and the CA have defaults, and may be others', () => {
    expect(readHttps({}, {})).toBeUndefined()
    expect(readHttps({ domain }, {})).toEqual({
      domains: [domain],
      httpsPort: 443,
      httpPort: 80,
      directoryUrl: 'https://acme-v02.api.letsencrypt.org/directory',
      ca: undefined,
    })
    const ca = join(directory, 'ca.pem')
    writeFileSync(ca, '-----BEGIN CERTIFICATE-----\n')
    const flags = { domain, 'https-port': '8443', 'http-port': '8080' }
    const variables = { ACME_DIRECTORY_URL: 'https://ca.example.com/dir', ACME_CA_FILE: ca }
    expect(readHttps(flags, variables)).toMatchObject({
      httpsPort: 8443,
      httpPort: 8080,
      directoryUrl: 'https://ca.example.com/dir',
      ca: '-----BEGIN CERTIFICATE-----\n',
    })
  })

  const noPem = join(directory, 'no.pem')
  writeFileSync(noPem, 'text')
  for (const [flags, variables, message] of [
    [{ 'https-port': '443' }, {}, '--https-port needs --domain'],
    [{ domain, 'http-port': '0' }, {}, '--http-port must be a number from 1 to 65535'],
    [{ domain, 'https-port': '65536' }, {}, '--https-port must be a number from 1 to 65535'],
    [{ domain }, { ACME_DIRECTORY_URL: 'http://ca/' }, 'ACME_DIRECTORY_URL must be the https: URL'],
    [{ domain }, { ACME_CA_FILE: '/no/such' }, 'ACME_CA_FILE names cannot be read (ENOENT)'],
    [{ domain }, { ACME_CA_FILE: noPem }, 'ACME_CA_FILE names has no certificate: it must be PEM'],
  ] as const)
    test(`error: ${message}`, () => {
      expect(() => readHttps(flags, variables)).toThrow(message)
    })
})

test('error: a port that cannot be used says what to do', () => {
  expect(portFault('EADDRINUSE', 443, 'https-port')).toBe(
    'port 443 is in use by another program: stop it, or name another port by --https-port',
  )
  expect(portFault('EACCES', 80, 'http-port')).toBe(
    'port 80 needs a right that this user has not: give the process CAP_NET_BIND_SERVICE ' +
      '(systemd: AmbientCapabilities), or forward 80 to the port of --http-port',
  )
  expect(portFault('EADDRNOTAVAIL', 80, 'http-port')).toBe(
    'port 80 cannot be used (EADDRNOTAVAIL): see --http-port',
  )
})

describe('base_url with --domain', () => {
  const withBaseUrl = (line: string) => small.replace('base_url = "https://pay.example.com"', line)
  const parsed = (line: string) =>
    parseConfig(withBaseUrl(line), { file: 'm.toml', env, domains: [domain, 'b.example.com'] })

  test('base_url is the first domain, unless the file names one of them', () => {
    expect(parsed('').config?.service.baseUrl).toBe(`https://${domain}`)
    const second = parsed('base_url = "https://b.example.com:8443"')
    expect(second.config?.service.baseUrl).toBe('https://b.example.com:8443')
  })

  for (const url of [`http://${domain}`, 'https://pay.example.com', 'http://localhost:4020'])
    test(`error: the base_url ${url} contradicts the domains`, () => {
      expect(parsed(`base_url = "${url}"`).faults.map(format)).toEqual([
        `m.toml:5: base_url ${url} contradicts --domain ${domain},b.example.com: ` +
          `write "https://${domain}", or remove base_url`,
      ])
    })

  test('check --domain says what serve would say', async () => {
    const file = join(directory, 'merchants.toml')
    writeFileSync(file, small)
    const run = async (name: string) => {
      const lines: string[] = []
      const out = (line: string) => void lines.push(line)
      const options = { file, env, online: false, dataDir: directory, now: Date.now, out }
      const code = await exitCode(check, { ...options, domain: name })
      return [code, lines.find((line) => line.includes('--domain'))]
    }
    expect(await run('pay.example.com')).toEqual([0, undefined])
    expect(await run(domain)).toEqual([1, expect.stringContaining('contradicts --domain')])
    expect(await run('*')).toEqual([1, expect.stringContaining('is no DNS name')])
  })
})

test('a start without --domain loads nothing of ACME', async () => {
  const all = new Map((await read(join(import.meta.dir, '../..'))).map((each) => [each.path, each]))
  // The command loads serve.ts; what that loads at once is the program of a plain `serve`.
  const loaded = new Set(['src/main.ts', 'src/cli/sell/serve.ts'])
  for (const path of loaded)
    for (const { target, typeOnly, dynamic } of all.get(path)?.imports ?? [])
      if (target !== undefined && !typeOnly && !dynamic) loaded.add(target)
  expect(loaded.size).toBeGreaterThan(200)
  expect([...loaded].filter((path) => /^src\/acme\/|https|steer/.test(path))).toEqual([
    'src/cli/sell/https.ts',
  ])
})
