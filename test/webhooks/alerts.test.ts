import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import { bodyOf, budgetSpent, gasChanged, networkPaused } from '../../db/WebhookEvent'
import { alerts } from '../../src/cli/operate/alerts'
import { type AlertKind, alertKinds } from '../../src/protocol/Webhook'
import { textOf } from '../../src/webhooks/alert-text'
import { createAlertWatch } from '../../src/webhooks/alert-watch'
import { type PlaceOptions, placeOf } from '../../src/webhooks/places'
import { createPost } from '../../src/webhooks/post'
import { certificate } from '../harness/certificate'
import { exitCode } from '../harness/command'
import { configOf, env, small } from '../harness/config'
import { executable } from '../harness/executable'
import { startReceiver } from '../harness/receiver'
import { startSmtp } from '../harness/smtp'

/** Alerts: when they are written, how each place shows them, and where they are sent. */

const receiver = startReceiver()
const { key, cert } = certificate('mail.test')
const secure = await startSmtp({ tls: { key, cert } })
const plain = await startSmtp()
const directory = mkdtempSync(join(tmpdir(), 'turnpike-alerts-'))
afterAll(async () => {
  await Promise.all([receiver.stop(), secure.stop(), plain.stop()])
  rmSync(directory, { recursive: true, force: true })
})
beforeEach(() => {
  receiver.received.length = 0
  receiver.answer = undefined
  for (const each of [secure, plain]) each.mails.length = 0
})

const token = `123456:${'s3cret-'.repeat(5)}`
const secrets = {
  SLACK_URL: `${receiver.url}/services/T0/B0/s3cret-slack`,
  DISCORD_URL: `${receiver.url}/api/webhooks/1/s3cret-discord`,
  TELEGRAM_TOKEN: token,
  SMTP_PASSWORD: 's3cret-password',
}
const entry = (kind: string, lines: string, end = 'allow_private = true') =>
  `\n[[alerts]]\nkind = "${kind}"\n${lines}\n${end}\n`
const slack = entry('slack', `url = "\${SLACK_URL}"`)
const discord = entry('discord', `url = "\${DISCORD_URL}"`)
const telegram = entry('telegram', `token = "\${TELEGRAM_TOKEN}"\nchat = "-100"`)
const mail = (port: number, more = '') =>
  entry(
    'mail',
    `host = "mail.test"\nport = ${port}\nuser = "ops"\npassword = "\${SMTP_PASSWORD}"
from = "pay@shop.test"\nto = ["a@ops.test", "b@ops.test"]\n${more}`,
  )
const withAlerts = (...entries: string[]) =>
  configOf(small + entries.join(''), { env: { ...env, ...secrets } })
/** Tests say where Telegram and the mail server are. */
const posting = { telegramUrl: receiver.url, ca: cert, resolve: async () => ['127.0.0.1'] }

async function sendTo(text: string, body: string, options: Partial<PlaceOptions> = {}) {
  const config = withAlerts(text)
  const [alert] = config.alerts
  if (alert === undefined) throw new Error('no place')
  const own = { now: Date.now, ...posting, ...options }
  const place = placeOf(alert, config, { ...own, post: createPost(own) })
  return place.send({ id: '', body }, new AbortController().signal)
}

const hour = 3_600_000
const at = Date.UTC(2026, 10, 28, 10, 0)
const relayer = '0x5c1f3a86d2e04b7795a1c0de34f6b8927e1d4a03'
const gas = {
  network: 'eip155:8453',
  relayer,
  balanceWei: 10n ** 15n,
  payments: 150n,
  sendWei: 2n * 10n ** 16n,
} as const
const hostile = networkPaused(
  'eip155:8453',
  'a <!channel> & @everyone *b*\r\nBcc: x@y.z \u202e https://rpc.test/s3cret-key',
  at,
)

/** Looks at states that a test changes; each process has its own memory and the same ledger. */
function watching() {
  const clock = { ms: at }
  const db = openInMemory({ now: () => clock.ms })
  const ledger = createLedger(db).webhooks
  const states = { ready: true, refused: [] as string[], isSpent: false }
  const places = [
    { id: 'p', origin: 'https://slack.test', about: alertKinds as readonly AlertKind[] },
  ]
  const start = () =>
    createAlertWatch({
      ledger,
      places: () => places,
      now: () => clock.ms,
      watched: {
        networks: () => [
          {
            network: 'eip155:8453',
            ready: states.ready,
            reason: 'no usable answer',
            relayers: [],
            cost: { gas: 1n, priceWei: 1n },
          },
        ],
        refused: () => states.refused.map((merchant) => ({ merchant, reason: '401' })),
        certificates: () => [],
        refunds: () => [],
        claims: () => [],
        spentBudgets: async () =>
          states.isSpent
            ? [
                {
                  network: 'eip155:8453',
                  product: 'gateway',
                  budget: 'gas',
                  spentWei: 9n,
                  budgetWei: 9n,
                },
              ]
            : [],
      },
    })
  let process = start()
  let seen = 0
  const rows = () =>
    db.sqlite.query('SELECT * FROM webhooks ORDER BY seq').all() as { type: string; body: string }[]
  return {
    ...{ db, ledger, places, states },
    undelivered: (merchant: string) =>
      process.undelivered({ merchant, route: '/a', upstreamStatus: 503 }),
    restart() {
      process = start()
    },
    /** Looks each half a minute. Returns what was told. */
    async pass(minutes: number, change: Partial<typeof states> = {}) {
      Object.assign(states, change)
      for (let i = 0; i < 2 * minutes; i++) {
        await process.look()
        clock.ms += 30_000
      }
      await process.look()
      const added = rows().slice(seen)
      seen += added.length
      return added.map(({ type, body }) =>
        [type, JSON.parse(body).data.payments ?? ''].join(' ').trim(),
      )
    },
  }
}

describe('an alert', () => {
  test('a condition is told once it lasts a minute, and its end is told once', async () => {
    const own = watching()
    expect(await own.pass(1)).toEqual([])
    expect(await own.pass(1, { ready: false })).toEqual([])
    expect(await own.pass(1)).toEqual(['network.paused'])
    expect(await own.pass(300)).toEqual([])
    expect(await own.pass(90, { ready: true })).toEqual(['network.resumed'])
    // A short fault is told neither way.
    expect(await own.pass(0.5, { ready: false })).toEqual([])
    expect(await own.pass(2, { ready: true })).toEqual([])
    own.db.close()
  })

  test('a condition that comes and goes is told at most once an hour, and the last state wins', async () => {
    const own = watching()
    await own.pass(1)
    const told: string[] = []
    for (let i = 0; i < 15; i++) {
      told.push(...(await own.pass(2, { ready: false })))
      told.push(...(await own.pass(2, { ready: true })))
    }
    // An hour of changes: the second failure is told only in the second hour.
    expect(told).toEqual(['network.paused', 'network.resumed'])
    expect(await own.pass(3, { ready: false })).toEqual(['network.paused'])
    expect(await own.pass(1, { ready: true })).toEqual(['network.resumed'])
    own.db.close()
  })

  test('restarts tell nothing again, and tell an end that no process saw', async () => {
    const own = watching()
    expect(await own.pass(2, { ready: false, refused: ['weather'] })).toEqual([
      'network.paused',
      'upstream.refuses',
    ])
    for (let i = 0; i < 40; i++) {
      own.restart()
      expect(await own.pass(3)).toEqual([])
    }
    own.restart()
    expect(await own.pass(1, { ready: true })).toEqual(['network.resumed'])
    own.restart()
    expect(await own.pass(5)).toEqual([])
    own.db.close()
  })

  test('undelivered payments of a merchant are one alert an hour, with their number', async () => {
    const own = watching()
    for (const merchant of ['one', 'one', 'two']) own.undelivered(merchant)
    expect(await own.pass(1)).toEqual(['delivery.failed 2', 'delivery.failed 1'])
    for (let i = 0; i < 3; i++) own.undelivered('one')
    expect(await own.pass(50)).toEqual([])
    expect(await own.pass(15)).toEqual(['delivery.failed 3'])
    expect(await own.pass(90)).toEqual([])
    own.db.close()
  })

  test('a spent budget is told once a day, and a place gets only what it is about', async () => {
    const own = watching()
    own.places.push({ id: 'q', origin: 'smtp://mail.test', about: ['gas'] })
    expect(await own.pass(120, { isSpent: true })).toEqual(['budget.spent'])
    expect(await own.pass(23 * 60, { isSpent: false })).toEqual([])
    expect(await own.pass(2, { isSpent: true })).toEqual(['budget.spent'])
    own.db.close()
  })

  test('several writers that saw the same state write it once', async () => {
    const own = watching()
    const alert = { endpoint: 'p', origin: 'o', subject: 's', body: '{}', at } as const
    const both = (
      type: 'network.paused' | 'network.resumed',
      phase: 'begins' | 'ends',
      ms: number,
    ) => Promise.all([0, 1].map(() => own.ledger.alert({ ...alert, type, phase, at: at + ms })))
    expect(await both('network.resumed', 'ends', 0)).toEqual([false, false])
    expect(await both('network.paused', 'begins', 0)).toEqual([true, false])
    expect(await both('network.resumed', 'ends', 1)).toEqual([true, false])
    expect(await both('network.paused', 'begins', hour - 1)).toEqual([false, false])
    expect(await both('network.paused', 'begins', hour)).toEqual([true, false])
    expect(await both('network.paused', 'begins', 2 * hour)).toEqual([false, false])
    // A state that lasts is told again after a day.
    expect(await both('network.paused', 'begins', 25 * hour)).toEqual([true, false])
    own.db.close()
  })
})

describe('the text', () => {
  const naming = withAlerts()
  const said = (event: Parameters<typeof bodyOf>[0], base = naming) =>
    textOf(bodyOf(event), base, (text) => text)

  test('names what happened, the amount and the address, and a page where it is public', () => {
    expect(said(gasChanged(gas, true, at))).toEqual({
      title: 'Turnpike: Gas is low on Base',
      text: [
        `Gas is low on Base. Relayer ${relayer} has 0.001 ETH (4.00 USD), enough for about 150 sales.`,
        `Send about 0.02 ETH (80.00 USD) to ${relayer} on Base (eip155:8453).`,
        'At 2026-11-28 10:00 UTC.',
        'See https://pay.example.com/admin/networks',
      ].join('\n'),
    })
    const local = { ...naming, service: { ...naming.service, baseUrl: 'http://localhost:4020' } }
    expect(said(gasChanged(gas, true, at), local).text).not.toContain('/admin')
    const spent = { network: 'eip155:8453', product: 'gateway', budget: 'gas' } as const
    expect(
      said(budgetSpent({ ...spent, spentWei: 10n ** 16n, budgetWei: 10n ** 16n }, at)).title,
    ).toBe('Turnpike: The gas budget of the gateway on Base is spent')
  })

  test('attack: a text of a node mentions no user, formats nothing and adds no line or header', async () => {
    for (const text of [slack, discord, telegram]) await sendTo(text, bodyOf(hostile))
    const [bySlack, byDiscord, byTelegram] = receiver.received.map(({ path, text }) => ({
      path,
      body: JSON.parse(text),
    }))
    expect(bySlack).toMatchObject({ path: '/services/T0/B0/s3cret-slack', body: { mrkdwn: false } })
    expect(bySlack?.body.text).toContain(
      'a &lt;!channel&gt; &amp; @\u200beveryone *b* Bcc: x@\u200by.z',
    )
    expect(byDiscord?.body).toMatchObject({ allowed_mentions: { parse: [] } })
    expect(byDiscord?.body.content).toContain(
      'a \\<!channel\\> & @\u200beveryone \\*b\\* Bcc: x@\u200by.z',
    )
    expect(byTelegram?.path).toBe(`/bot${token}/sendMessage`)
    expect(byTelegram?.body).toMatchObject({ chat_id: '-100' })
    expect(byTelegram?.body).not.toHaveProperty('parse_mode')
    for (const each of [bySlack?.body.text, byDiscord?.body.content, byTelegram?.body.text])
      expect([each.split('\n').length, /\u202e|s3cret/.test(each)]).toEqual([4, false])
    const service = { ...naming.service, title: 'Shop\r\nBcc: x@y.z' }
    expect(said(hostile, { ...naming, service }).title).toBe('Shop Bcc: x@y.z: Base cannot settle')
  })
})

describe('mail', () => {
  const body = bodyOf(hostile)

  test('STARTTLS comes before the login, and the mail has its recipients', async () => {
    expect(await sendTo(mail(secure.port), body)).toMatchObject({ status: 250 })
    const [sent] = secure.mails
    expect(sent).toMatchObject({
      from: '<pay@shop.test>',
      to: ['<a@ops.test>', '<b@ops.test>'],
      isSecure: true,
    })
    const [head = '', text = ''] = (sent?.text ?? '').split('\r\n\r\n')
    expect(head).toContain('Subject: Turnpike: Base cannot settle')
    expect(head).not.toMatch(/^bcc/im)
    expect(text).toContain('Base cannot settle.')
  })

  test('error: without STARTTLS nothing is sent, unless the file says so', async () => {
    plain.lines.length = 0
    expect(await sendTo(mail(plain.port), body)).toEqual({ error: 'smtp ETLS 502' })
    expect(plain.lines.filter((line) => /AUTH|MAIL|DATA/.test(line))).toEqual([])
    expect(await sendTo(mail(plain.port, 'tls = "none"'), body)).toMatchObject({ status: 250 })
    expect(plain.mails).toMatchObject([{ isSecure: false }])
  })

  test('error: the certificate must be of the name', async () => {
    const other = mail(secure.port).replace('mail.test', 'other.test')
    expect(await sendTo(other, body)).toEqual({ error: expect.stringMatching(/^smtp E/) })
    expect(secure.mails).toEqual([])
  })

  test('error: a private address, a refused login and a silent server are codes without secrets', async () => {
    const without = mail(secure.port).replace('allow_private = true', '')
    expect(await sendTo(without, body)).toEqual({ error: 'refused-address' })
    const refusing = await startSmtp({ refusesLogin: true, tls: { key, cert } })
    expect(await sendTo(mail(refusing.port), body)).toEqual({ error: 'smtp EAUTH 535' })
    await refusing.stop()
    const silent = Bun.listen({ hostname: '127.0.0.1', port: 0, socket: { data() {} } })
    const answer = await sendTo(mail(silent.port), body, { timeoutMs: 50 })
    silent.stop(true)
    expect(answer).toEqual({ error: 'timeout' })
  })
})

describe('turnpike alerts test', () => {
  async function command(text: string, more: Partial<PlaceOptions> = {}) {
    const file = join(directory, 'merchants.toml')
    writeFileSync(file, small + text)
    const lines: string[] = []
    const run = (options: Parameters<typeof alerts>[0]) => alerts(options, { ...posting, ...more })
    const options = { verb: 'test', file, env: { ...env, ...secrets } }
    const code = await exitCode(run, { ...options, out: (line) => void lines.push(line) })
    return { code, text: lines.join('\n').replaceAll(/:\d{4,5}\b/g, '') }
  }

  test('sends one alert to every place and says what became of each', async () => {
    const all = slack + discord + telegram + mail(secure.port)
    expect(await command(all)).toEqual({
      code: 0,
      text: [
        'slack     http://127.0.0.1  sent',
        'discord   http://127.0.0.1  sent',
        'telegram  http://127.0.0.1  sent',
        'mail      smtp://mail.test  sent',
      ].join('\n'),
    })
    expect([receiver.received.length, secure.mails.length]).toEqual([3, 1])
    receiver.answer = ({ path }) =>
      path.startsWith('/services') ? new Response('s3cret', { status: 404 }) : undefined
    const failed = await command(all)
    expect(failed.code).toBe(1)
    expect(failed.text).toContain('slack     http://127.0.0.1  failed: status 404')
    expect(failed.text).not.toContain('s3cret')
    expect((await command('')).text).toContain('has no [[alerts]]')
  })

  test('the executable sends mail by STARTTLS', async () => {
    const file = join(directory, 'program.toml')
    const local = mail(secure.port).replace('"mail.test"', '"localhost"')
    writeFileSync(file, small + local)
    const ca = join(directory, 'ca.pem')
    const localhost = certificate('localhost')
    writeFileSync(ca, localhost.cert)
    const server = await startSmtp({ tls: localhost })
    writeFileSync(file, small + local.replace(String(secure.port), String(server.port)))
    const child = Bun.spawn([executable, 'alerts', 'test', '--config', file], {
      env: { ...env, ...secrets, NODE_EXTRA_CA_CERTS: ca },
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const said = (await child.stdout.text()) + (await child.stderr.text())
    expect([await child.exited, said]).toEqual([0, expect.stringContaining('sent')])
    expect(server.mails).toMatchObject([{ isSecure: true }])
    await server.stop()
  })
})
