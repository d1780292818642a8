import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Certificates, createCertificates } from '../../src/acme/certificates'
import { type HttpPort, listenHttp } from '../../src/acme/http-port'
import type { Challenges } from '../../src/acme/order'
import { createRegistry } from '../../src/http/metrics'
import { createLog } from '../../src/log'
import { certificate } from '../harness/certificate'
import { freePorts, type Pebble, pebblePath, startPebble } from '../harness/pebble'
import { until } from '../harness/settlement'

/** Orders of certificates, at a real ACME server. */

const isMissing = pebblePath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the tests of certificates need pebble (apt-get install pebble)\n')

const domain = 'api.example.test'
const other = 'pay.example.test'
/** Nothing can listen with it, and it is behind a good certificate. */
const damagedIssuer = '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n'
const hour = 3_600_000
const year = 365 * 24 * hour

let pebble: Pebble
let directory: string
beforeAll(async () => {
  if (isMissing) return
  directory = mkdtempSync(join(tmpdir(), 'turnpike-acme-'))
  pebble = await startPebble()
  const keeper = keep(join(directory, 'issued'))
  keeper.start()
  await until(() => keeper.served.length === 1)
  for (const each of open.splice(0)) await each.stop()
})
afterAll(async () => {
  await pebble?.stop()
  if (directory !== undefined) rmSync(directory, { recursive: true, force: true })
})

type Line = { event: string; reason?: string; retryInSeconds?: number; file?: string }
type Keeper = Certificates & {
  logged: Line[]
  /** Domains of the certificates that were served. */
  served: (readonly string[])[]
  metrics(): Promise<string>
  /** Moves the clock and waits until it was read. */
  pass(ms: number): Promise<void>
}

const open: (Certificates | HttpPort)[] = []
afterEach(async () => {
  pebble?.refuse(undefined)
  for (const each of open.splice(0)) await each.stop()
  await until(() => pebble === undefined || pebble.active() === 0)
})

/** Keeps certificates as the service does. `httpPort`: another one cannot be reached by the CA. */
function keep(
  dataDir: string,
  options: {
    domains?: string[]
    httpPort?: number
    directoryUrl?: string
    contact?: string
  } = {},
): Keeper {
  const { domains = [domain], httpPort = pebble.httpPort } = options
  const challenges: Challenges = new Map()
  const baseUrl = `https://${domain}`
  const hostname = '127.0.0.1'
  const port = { hostname, port: httpPort, connectionsMax: 100 }
  open.push(listenHttp({ ...port, challenges, domains, baseUrl }))
  const lines: string[] = []
  const served: (readonly string[])[] = []
  const registry = createRegistry()
  let offsetMs = 0
  let reads = 0
  const certificates = createCertificates({
    domains,
    dataDir,
    directoryUrl: options.directoryUrl ?? pebble.directoryUrl,
    ca: pebble.ca,
    contact: () => options.contact,
    challenges,
    serve({ domains }) {
      served.push(domains)
    },
    registry,
    now() {
      reads++
      return Date.now() + offsetMs
    },
    log: createLog({ write: (line) => void lines.push(line), pretty: false }),
    checkMs: 2,
  })
  open.push(certificates)
  return {
    ...certificates,
    served,
    get logged() {
      return lines.map((line): Line => JSON.parse(line))
    },
    metrics: () => registry.render(),
    async pass(ms) {
      offsetMs += ms
      const before = reads
      await until(() => reads > before + 2)
    },
  }
}

const orders = () => pebble.asked.filter((path) => path === '/order-plz').length
const events = ({ logged }: Keeper) => logged.map(({ event }) => event)
const fileIn = (dataDir: string) => join(dataDir, 'certificate.pem')

/** A data directory with a certificate for the domain. */
function issued(name: string): string {
  const dataDir = join(directory, name)
  cpSync(join(directory, 'issued'), dataDir, { recursive: true })
  return dataDir
}

describe.skipIf(isMissing)('certificates of an ACME server', () => {
  test('the first start orders a certificate, and keeps it for its owner only', async () => {
    const dataDir = join(directory, 'first')
    const keeper = keep(dataDir, { contact: 'ops@shop.test' })
    keeper.restore()
    expect(keeper.faults()).toEqual([{ domain, reason: 'no certificate yet' }])
    expect(await keeper.metrics()).toContain(
      `turnpike_certificate_expires_seconds{domain="${domain}"} 0\n`,
    )
    keeper.start()
    await until(() => keeper.served.length > 0)
    expect(keeper.served).toEqual([[domain]])
    expect([events(keeper), keeper.faults()]).toEqual([['certificate-issued'], []])
    for (const name of ['certificate.pem', 'acme-account.key'])
      expect(statSync(join(dataDir, name)).mode & 0o777).toBe(0o600)
    const metrics = await keeper.metrics()
    expect(metrics).toMatch(/turnpike_certificate_expires_seconds\{domain="\S+"\} 1\d{8}\n/)
    expect(metrics).toContain('turnpike_certificate_orders_total{outcome="issued"} 1\n')
    expect(JSON.stringify(keeper.logged)).not.toContain('PRIVATE')
  })

  test('a restart serves the stored certificate, and orders none', async () => {
    const dataDir = issued('restart')
    const before = orders()
    const keeper = keep(dataDir)
    keeper.restore()
    expect(keeper.served).toEqual([[domain]])
    keeper.start()
    await keeper.pass(0)
    expect([orders() - before, events(keeper)]).toEqual([0, []])
  })

  test('a certificate is renewed when a third of its life is left, and not twice', async () => {
    const dataDir = issued('renewal')
    const keeper = keep(dataDir)
    keeper.restore()
    keeper.start()
    const before = orders()
    const earlier = readFileSync(fileIn(dataDir), 'utf8')
    // pebble issues for five years.
    await keeper.pass(3 * year)
    expect(orders()).toBe(before)
    await keeper.pass(0.5 * year)
    await until(() => keeper.served.length === 2)
    expect(readFileSync(fileIn(dataDir), 'utf8')).not.toBe(earlier)
    // By this clock the new one is as old as the first one.
    const asked = pebble.asked.length
    await keeper.pass(0)
    await keeper.pass(11 * hour)
    expect([pebble.asked.length, orders()]).toEqual([asked, before + 1])
  })

  test('attack: a renewed certificate that has ended does not replace one that is valid', async () => {
    const dataDir = issued('ended')
    const { key, cert } = certificate(domain)
    writeFileSync(fileIn(dataDir), `${key}${cert}`)
    const keeper = keep(dataDir)
    keeper.restore()
    // It is valid for a century, and pebble issues for five years from today.
    keeper.start()
    await keeper.pass(65 * year)
    await until(() => keeper.logged.length === 1)
    expect(keeper.logged).toMatchObject([
      { event: 'certificate-failed', reason: expect.stringContaining('that ended at 203') },
    ])
    expect([keeper.served.length, readFileSync(fileIn(dataDir), 'utf8')]).toEqual([
      1,
      `${key}${cert}`,
    ])
  })

  test('error: a domain of another machine fails with the reason, and is ordered at growing intervals', async () => {
    const dataDir = issued('wrong')
    rmSync(join(dataDir, 'acme-account.key'))
    const [unreached = 0] = await freePorts(1)
    const keeper = keep(dataDir, { httpPort: unreached })
    keeper.restore()
    keeper.start()
    const before = orders()
    await keeper.pass(3.5 * year)
    const waits: number[] = []
    for (let failures = 1; failures <= 4; failures++) {
      await until(() => keeper.logged.length === failures)
      const { event, reason = '', retryInSeconds = 0 } = keeper.logged.at(-1) ?? { event: '' }
      expect([event, reason]).toEqual([
        'certificate-failed',
        expect.stringContaining(`the CA did not reach this service as ${domain} on port 80`),
      ])
      expect(reason).toContain('connection refused')
      expect(reason).toContain(`Point the DNS records of ${domain} here, and open port 80`)
      waits.push(retryInSeconds)
      const asked = pebble.asked.length
      await keeper.pass((retryInSeconds - 10) * 1000)
      expect([pebble.asked.length, orders() - before]).toEqual([asked, failures])
      await keeper.pass(11_000)
    }
    const least = [60, 300, 900, 1800]
    for (const [index, wait] of waits.entries()) {
      expect(wait).toBeGreaterThanOrEqual(least[index] ?? 0)
      expect(wait).toBeLessThanOrEqual((least[index] ?? 0) * 1.1 + 1)
    }
    // The earlier certificate is served all the time. There is time until it ends.
    expect([keeper.served, keeper.faults()]).toEqual([[[domain]], []])
    expect(await keeper.metrics()).toMatch(/certificate_orders_total\{outcome="failed"\} [45]\n/)
    await keeper.pass(year)
    expect(keeper.faults()).toEqual([
      { domain, reason: expect.stringContaining('its certificate was not renewed: the CA did') },
    ])
    await keeper.pass(year)
    expect(keeper.faults()).toEqual([
      { domain, reason: expect.stringContaining('its certificate expired: the CA did') },
    ])
  })

  test('error: a rate limit is obeyed for as long as the CA asks', async () => {
    const limited = {
      status: 429,
      headers: { 'retry-after': '7200' },
      body: { type: 'urn:ietf:params:acme:error:rateLimited', detail: 'too many certificates' },
    }
    pebble.refuse((path) => (path === '/order-plz' ? limited : undefined))
    const keeper = keep(join(directory, 'limited'))
    keeper.start()
    await until(() => keeper.logged.length === 1)
    expect(keeper.logged[0]).toMatchObject({
      event: 'certificate-failed',
      reason: expect.stringContaining('rateLimited: too many certificates'),
      retryInSeconds: 7200,
    })
    pebble.refuse(undefined)
    const asked = pebble.asked.length
    await keeper.pass(7_190_000)
    expect(pebble.asked).toHaveLength(asked)
    await keeper.pass(20_000)
    await until(() => keeper.served.length === 1)
    expect(events(keeper)).toEqual(['certificate-failed', 'certificate-issued'])
  })

  test('error: a CA that cannot be reached fails with its host', async () => {
    const keeper = keep(join(directory, 'unreachable'), { directoryUrl: 'https://localhost:1/dir' })
    keeper.start()
    await until(() => keeper.logged.length === 1)
    expect(keeper.logged[0]?.reason).toMatch(/^the CA at localhost:1 cannot be reached \(\w+\)$/)
  })

  test('error: an order at a CA that is out of service is repeated after its Retry-After', async () => {
    const keeper = keep(join(directory, 'none'))
    pebble.refuse(() => ({ status: 503, headers: { 'retry-after': '900' }, body: {} }))
    keeper.start()
    await until(() => keeper.logged.length === 1)
    const { reason, retryInSeconds } = keeper.logged[0] ?? {}
    expect(reason).toMatch(/^the CA at localhost:\d+ refused: it answered 503$/)
    expect(retryInSeconds).toBe(900)
  })

  for (const [what, damage] of [
    ['a damaged file', (text: string) => text.replaceAll(/[a-m]/g, 'A')],
    ['an empty file', () => ''],
    ['a file without its key', (text: string) => text.slice(text.indexOf('-----BEGIN CERT'))],
    ['a file with a damaged issuer', (text: string) => text + damagedIssuer],
  ] as const)
    test(`error: ${what} is reported and replaced`, async () => {
      const dataDir = issued(what)
      const file = fileIn(dataDir)
      writeFileSync(file, damage(readFileSync(file, 'utf8')))
      const keeper = keep(dataDir)
      keeper.restore()
      expect(keeper.logged).toMatchObject([{ event: 'certificate-unreadable', file }])
      keeper.start()
      await until(() => keeper.served.length === 1)
      const next = keep(dataDir, { httpPort: (await freePorts(1))[0] ?? 0 })
      next.restore()
      expect(next.served).toEqual([[domain]])
    })

  test('error: a damaged key of the account is reported and replaced', async () => {
    const dataDir = join(directory, 'account')
    const file = join(issued('account'), 'acme-account.key')
    writeFileSync(file, 'damaged')
    rmSync(fileIn(dataDir))
    const keeper = keep(dataDir)
    keeper.start()
    await until(() => keeper.served.length === 1)
    expect(events(keeper)).toEqual(['certificate-unreadable', 'certificate-issued'])
  })

  test('attack: a certificate that others may read is refused', async () => {
    const dataDir = issued('open')
    chmodSync(fileIn(dataDir), 0o644)
    const keeper = keep(dataDir)
    const message = `${fileIn(dataDir)} is open to others (0644): run chmod 600`
    expect(() => keeper.restore()).toThrow(message)
  })

  test('another domain is ordered, and the certificate of the former is not served', async () => {
    const keeper = keep(issued('moved'), { domains: [other] })
    keeper.restore()
    expect(keeper.served).toEqual([])
    keeper.start()
    await until(() => keeper.served.length === 1)
    expect(keeper.served).toEqual([[other]])
  })

  test('a second domain is added while the first is served', async () => {
    const keeper = keep(issued('added'), { domains: [domain, other] })
    keeper.restore()
    expect(keeper.served).toEqual([[domain]])
    expect(keeper.faults()).toEqual([{ domain: other, reason: 'no certificate yet' }])
    keeper.start()
    await until(() => keeper.served.length === 2)
    expect([keeper.served[1]?.toSorted(), keeper.faults()]).toEqual([[domain, other], []])
  })

  test('error: a certificate that cannot be stored is served, and stored later', async () => {
    const dataDir = join(directory, 'full')
    const file = fileIn(dataDir)
    // A directory in its place, because root may write anywhere.
    mkdirSync(join(file, 'in the way'), { recursive: true })
    const keeper = keep(dataDir)
    keeper.start()
    await until(() => keeper.served.length === 1)
    await keeper.pass(0)
    await keeper.pass(0)
    expect(events(keeper)).toEqual(['certificate-unsaved', 'certificate-issued'])
    expect(keeper.logged.slice(0, 1)).toMatchObject([
      {
        event: 'certificate-unsaved',
        reason: expect.stringContaining(`${file} cannot be written`),
      },
    ])
    rmSync(file, { recursive: true })
    await until(() => existsSync(file))
    expect([statSync(file).mode & 0o777, keeper.logged.length]).toEqual([0o600, 2])
  })

  test('a stop ends an order in progress', async () => {
    const asked = Promise.withResolvers<void>()
    const keeper = keep(join(directory, 'stopped'))
    pebble.refuse((path) => {
      if (!path.startsWith('/authZ')) return undefined
      asked.resolve()
      return { status: 200, headers: {}, body: { status: 'valid' } }
    })
    keeper.start()
    await asked.promise
    await keeper.stop()
    expect([keeper.served, events(keeper)]).toEqual([[], []])
  })
})
