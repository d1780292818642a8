import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { LocalAccount } from 'viem'
import { account } from '../../src/demo/accounts'
import { type Chain, mine } from '../../src/demo/chains'
import { ask } from '../harness/buyer'
import { base, type Club, robinhood, startClub } from '../harness/club'
import { connect, request } from '../harness/raw'
import { buy, openConnection, startShopChains, untilEnded } from '../harness/shop'
import { type SignInOptions, signInOf } from '../harness/siwe'
import { freshWallet, setTokens } from '../harness/sponsor'
import type { Reply } from '../harness/upstream'
import { until } from '../harness/world'

/** Attacks on trials, passes, re-access and refunds: no wallet gets more than what was given or paid. */

let chains: Chain[]
let club: Club
beforeAll(async () => {
  chains = await startShopChains()
  club = await startClub({
    chains,
    env: { REFUND_KEY: account(8).privateKey },
    // A node that announces its blocks shows a reorganisation at once.
    adjust: (config) => ({
      ...config,
      networks: config.networks.map((network, index) => ({
        ...network,
        wsUrl: chains[index]?.wsUrl ?? '',
      })),
    }),
  })
})
afterAll(async () => {
  await club?.shop.stop()
  await Promise.all((chains ?? []).map((chain) => chain.stop()))
})
beforeEach(() => {
  club.shop.upstream.script = undefined
  for (const tap of Object.values(club.shop.taps)) tap.intercept = undefined
})

/** On the chain of the wallets of a club. */
const signFor = (wallet: LocalAccount, path = '/data', signed: SignInOptions['signed'] = {}) =>
  club.signIn(wallet, path, { signed: { chainId: base, ...signed } })
const denied = (reason: string) => ({ code: 'not-entitled', reason })
const x402 = { scheme: 'x402-eip3009' } as const
const day = 24 * 60 * 60 * 1_000

/** Statuses of requests that sign in, each with a nonce of its own, at once. */
async function together(wallets: readonly LocalAccount[], path: string): Promise<number[]> {
  const headers = await Promise.all(wallets.map((wallet) => signFor(wallet, path)))
  const answers = await Promise.all(headers.map((each) => club.send(path, each)))
  return answers.map(({ status }) => status).sort()
}
const times = <T>(count: number, value: T) => Array<T>(count).fill(value)

/** The handler of the next request at the upstream. */
function nextReply(): Promise<Reply> {
  return new Promise((resolve) => {
    club.shop.upstream.script = (_, reply) => resolve(reply)
  })
}
const row = (kind: string, wallet: string) =>
  club.shop.rows(
    `SELECT uses, uses_max, attempts FROM entitlements WHERE kind = '${kind}'
     AND lower(wallet) = '${wallet.toLowerCase()}' ORDER BY created_at DESC`,
  )[0]
describe('trials', () => {
  let aheadMs = 0
  const advance = (ms: number) => {
    aheadMs += ms
    club.shop.advance(ms)
  }
  // On the next day the pool of trials is full again.
  beforeEach(() => advance(day))
  // Payments are signed by the clock of the chains.
  afterAll(() => advance(-aheadMs))

  test('attack: a wallet counts once, however it is written and on whichever chain it signs', async () => {
    const wallet = await club.wallet()
    await setTokens(club.chain(robinhood), tokenOf(robinhood), [wallet.address], 1_000_000n)
    await mine(club.chain(robinhood), 5)
    const written = [wallet.address, wallet.address.toLowerCase(), wallet.address.toUpperCase()]
    const before = club.books()
    const statuses: number[] = []
    for (const chainId of [base, robinhood, base])
      for (const address of written) {
        // The text is signed as it is written, so some forms are refused.
        const headers = await signFor(wallet, '/trial', { address, chainId })
        statuses.push((await club.send('/trial', headers)).status)
      }
    expect(statuses.filter((status) => status === 200)).toHaveLength(2)
    expect(
      statuses.filter((status) => status !== 200).every((status) => [400, 402].includes(status)),
    ).toBe(true)
    expect((club.books().forwarded ?? 0) - (before.forwarded ?? 0)).toBe(2)
    // Each route has a trial of its own.
    await club.served(await signFor(wallet, '/second'), '/second')
  })

  test('attack: twenty requests of a wallet at once get the number of its trial', async () => {
    const wallet = await club.wallet()
    expect(await together(times(20, wallet), '/trial')).toEqual([200, 200, ...times(18, 402)])
    expect(row('trial', wallet.address)).toEqual({ uses: 2, uses_max: 2, attempts: 2 })
    await club.refused(await signFor(wallet, '/trial'), {
      path: '/trial',
      ...denied('entitlement_spent'),
    })
    // A trial is once for ever.
    advance(400 * day)
    await club.refused(await signFor(wallet, '/trial'), {
      path: '/trial',
      ...denied('entitlement_spent'),
    })
  })

  test('attack: many wallets at once get the number of the day', async () => {
    const wallets = await Promise.all(Array.from({ length: 8 }, () => club.wallet()))
    expect(await together([...wallets, ...wallets], '/trial')).toEqual([
      ...times(5, 200),
      ...times(11, 402),
    ])
    const late = await club.wallet()
    await club.refused(await signFor(late, '/trial'), {
      path: '/trial',
      ...denied('trial_day_spent'),
    })
    // Nor is a node asked what such a wallet holds.
    const asked = JSON.stringify(club.shop.taps[base]?.calls).toLowerCase()
    expect(asked).not.toContain(late.address.slice(2).toLowerCase())
    // The pool of another route is another one.
    await club.served(await signFor(wallets[0] as LocalAccount, '/second'), '/second')
  })

  test('attack: money that is moved in, or out, or in and out, gives no trial', async () => {
    const [chain, token] = [club.chain(), tokenOf(base)]
    const cases: [string, () => Promise<LocalAccount>, string][] = [
      ['none', async () => freshWallet(), 'trial_balance_too_low'],
      ['dust', () => club.wallet({ atomic: 99_999n }), 'trial_balance_too_low'],
      ['just moved in', () => club.wallet({ ageBlocks: 0 }), 'trial_balance_too_young'],
      ['moved in a block too late', () => club.wallet({ ageBlocks: 2 }), 'trial_balance_too_young'],
      [
        'moved out',
        async () => {
          const wallet = await club.wallet()
          await setTokens(chain, token, [wallet.address], 0n)
          await mine(chain)
          return wallet
        },
        'trial_balance_too_low',
      ],
      [
        'on the chain that it does not sign for',
        () => club.wallet({ network: robinhood }),
        'trial_balance_too_low',
      ],
    ]
    for (const [what, make, reason] of cases) {
      const headers = await signFor(await make(), '/trial')
      const problem = await club.refused(headers, { path: '/trial', ...denied(reason) })
      expect([what, problem.reason]).toEqual([what, reason])
    }
    // The refused nonce was not counted: it works once the balance is old enough.
    const wallet = await club.wallet({ ageBlocks: 0 })
    const early = await signFor(wallet, '/trial')
    await club.refused(early, { path: '/trial', ...denied('trial_balance_too_young') })
    await mine(chain, 5)
    await club.served(early, '/trial')
  })

  test('attack: a client that leaves before each first byte has the upstream called a limited number of times', async () => {
    const wallet = await club.wallet()
    const before = club.books()
    for (let turn = 0; turn < 12; turn++) {
      const reply = nextReply()
      const connection = openConnection(club.at('/trial'), await signFor(wallet, '/trial'))
      const upstream = await reply
      await connection.leave()
      upstream.send(200)
      await until('it is given back', () => running() === 0)
    }
    expect(row('trial', wallet.address)).toEqual({ uses: 0, uses_max: 2, attempts: 12 })
    club.shop.upstream.script = undefined
    await club.refused(await signFor(wallet, '/trial'), {
      path: '/trial',
      ...denied('entitlement_spent'),
    })
    expect((club.books().forwarded ?? 0) - (before.forwarded ?? 0)).toBe(12)
    expect(club.books().uses).toBe(before.uses ?? 0)
  })

  test('attack: a client that leaves after each first byte has used it', async () => {
    const wallet = await club.wallet()
    for (let turn = 0; turn < 2; turn++) {
      const reply = nextReply()
      const socket = connect(
        club.shop.url,
        request('/m/club/trial', linesOf(await signFor(wallet, '/trial'))),
      )
      const upstream = await reply
      upstream.head(200, { 'content-type': 'text/event-stream' })
      upstream.chunk('data: 1\n\n')
      await new Promise<void>((resolve) =>
        socket.on('data', (chunk) => String(chunk).includes('data: 1') && resolve()),
      )
      socket.destroy()
      upstream.chunk('data: 2\n\n')
      upstream.end()
      await until('it has ended', () => running() === 0)
    }
    club.shop.upstream.script = undefined
    expect(row('trial', wallet.address)).toMatchObject({ uses: 2 })
    await club.refused(await signFor(wallet, '/trial'), {
      path: '/trial',
      ...denied('entitlement_spent'),
    })
  })

  test('attack: an upstream that fails gives the use back, in the pool of the day too', async () => {
    const wallet = await club.wallet()
    for (const status of [500, 503]) {
      club.shop.upstream.script = (_, reply) => reply.send(status, '{}')
      const response = await club.send('/trial', await signFor(wallet, '/trial'))
      const problem = (await response.json()) as Record<string, unknown>
      expect([response.status, problem.redeem]).toEqual([502, undefined])
      await until('it is given back', () => running() === 0)
    }
    expect(row('trial', wallet.address)).toEqual({ uses: 0, uses_max: 2, attempts: 2 })
    club.shop.upstream.script = undefined
    const wallets = await Promise.all(Array.from({ length: 6 }, () => club.wallet()))
    expect(await together(wallets, '/trial')).toEqual([...times(5, 200), 402])
  })
})

describe('passes', () => {
  test('attack: a pass of two requests gives two, at once and one after the other', async () => {
    const wallet = await club.wallet()
    await club.buyPass({ signer: wallet }, '/few')
    expect(await together(times(10, wallet), '/few')).toEqual([200, 200, ...times(8, 402)])
    await club.refused(await signFor(wallet, '/few'), {
      path: '/few',
      ...denied('entitlement_spent'),
    })
    // A second one adds to it.
    await club.buyPass({ signer: wallet }, '/few')
    expect(await together(times(6, wallet), '/few')).toEqual([200, 200, ...times(4, 402)])
  })

  test('attack: a pass does not outlive its period, nor open other routes or other wallets', async () => {
    const wallet = await club.wallet()
    await club.buyPass({ signer: wallet })
    for (const path of ['/other', 'rival/data'])
      await club.refused(await signFor(wallet, path), { path, ...denied('no_entitlement') })
    await club.refused(await signFor(freshWallet()), denied('no_entitlement'))
    await club.served(await signFor(wallet))
    club.shop.advance(day + 1_000)
    await club.refused(await signFor(wallet), denied('no_entitlement'))
    club.shop.advance(-day - 1_000)
  })

  test('attack: a pass whose payment is reorganised away is refused until it is paid again', async () => {
    const [chain, tap] = [club.chain(), club.shop.taps[base]]
    const wallet = await club.wallet()
    await club.buyPass({ signer: wallet })
    const release = Promise.withResolvers<void>()
    if (tap)
      tap.intercept = async ({ method }) => {
        if (method.startsWith('eth_sendRawTransaction')) await release.promise
        return undefined
      }
    // A use is under way when the payment vanishes: its answer is delivered and counted.
    const reply = nextReply()
    const using = club.send('/data', await signFor(wallet))
    const upstream = await reply
    await chain.rpc('anvil_reorg', [1, []])
    await until('it is noticed', () => newest().state !== 'confirmed')
    upstream.send(200)
    expect((await using).status).toBe(200)
    club.shop.upstream.script = undefined
    await club.refused(await signFor(wallet), denied('no_entitlement'))
    release.resolve()
    await until('it is paid again', () => newest().state === 'confirmed')
    await club.served(await signFor(wallet))
    expect(row('pass', wallet.address)).toMatchObject({ uses: 2 })
  })

  test('attack: a refund ends a pass, also while it is used, and is made once', async () => {
    const wallet = await club.wallet()
    const held = () => club.shop.balance(base, wallet.address)
    await setTokens(club.chain(), tokenOf(base), [account(8).address], 10_000_000n)
    await club.buyPass({ signer: wallet })
    const { id } = newest()
    const before = await held()
    const reply = nextReply()
    const using = club.send('/data', await signFor(wallet))
    const upstream = await reply
    const asked = Array.from({ length: 5 }, () =>
      club.shop.ledger.refunds.request({
        ...{ paymentId: String(id), account: account(8).address, amountAtomic: undefined },
        ...{
          reason: 'operator' as const,
          note: undefined,
          perDayAtomic: 10n ** 9n,
          now: club.shop.now(),
        },
      }),
    )
    expect((await Promise.all(asked)).map(String).sort()).toEqual([
      ...times(4, 'exists'),
      'requested',
    ])
    await club.refused(await signFor(wallet), denied('no_entitlement'))
    upstream.send(200)
    expect((await using).status).toBe(200)
    await club.shop.restart()
    await mine(club.chain(), 20)
    await until('it is refunded', async () => {
      await mine(club.chain())
      return (await club.shop.ledger.refunds.find(String(id)))?.state === 'refunded'
    })
    expect((await held()) - before).toBe(50_000n)
    await club.refused(await signFor(wallet), denied('no_entitlement'))
  })

  test('attack: no buyer pays for a pass by accident, and none gets one for the price of a request', async () => {
    const asked = await ask(club.at('/data'))
    const [offer] = asked.required.accepts
    expect(offer?.amount).toBe('5000')
    expect(signInOf(await ask(club.at('/data/pass')))).toBeUndefined()
    const wallet = await club.wallet()
    const cheap = await buy(club.at('/data/pass'), { ...x402, signer: wallet, value: 5_000n })
    expect(cheap.status).toBe(402)
    await club.refused(await signFor(wallet), denied('no_entitlement'))
  })
})

describe('re-access', () => {
  const paid = async (wallet: LocalAccount, path = '/again') => {
    const response = await buy(club.at(path), { ...x402, signer: wallet })
    expect(response.status).toBe(200)
    await response.text()
    await untilEnded(club.shop)
    return response.headers.get('payment-redeem') ?? ''
  }

  test('attack: a paid request is fetched again as often as it may be, by key and by token together', async () => {
    const wallet = await club.wallet()
    const token = await paid(wallet)
    const signed = await Promise.all(times(5, 0).map(() => signFor(wallet, '/again')))
    const all = [...signed, ...times(5, { 'payment-redeem': token })]
    const answers = await Promise.all(all.map((headers) => club.send('/again', headers)))
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(3)
    for (const { status } of answers) expect([200, 402, 409, 410]).toContain(status)
    expect(row('again', wallet.address)).toEqual({ uses: 3, uses_max: 3, attempts: 3 })
  })

  test('attack: the token of another request, another payment, another label, or no payment', async () => {
    const wallet = await club.wallet()
    const other = await club.wallet()
    const token = await paid(wallet)
    const second = await paid(other, '/again?x=1')
    const [id = '', mac = ''] = token.split('.')
    const [otherId = ''] = second.split('.')
    const before = club.books()
    const tries: [string, string][] = [
      ['/again?x=1', token],
      ['/again?x=2', token],
      ['/data', token],
      ['/trial', token],
      ['/again', second],
      ['/again', `${otherId}.${mac}`],
      ['/again', mac],
      ['/again', `${id}.${mac.slice(0, -1)}${mac.endsWith('A') ? 'B' : 'A'}`],
      ['/again', `${id}.${'A'.repeat(43)}`],
      ['/again', `pay_${'0'.repeat(32)}.${mac}`],
    ]
    for (const [path, value] of tries) {
      const { status } = await club.send(path, { 'payment-redeem': value })
      expect([path, value, status >= 400 && status < 500]).toEqual([path, value, true])
      expect(club.books()).toEqual(before)
    }
    // The token is of one method, too.
    const post = await club.send('/again', { 'payment-redeem': token }, { method: 'POST' })
    expect([post.status >= 400 && post.status < 500, club.books()]).toEqual([true, before])
    // Another wallet than the payer has nothing of the request.
    await club.refused(await signFor(other, '/again'), {
      path: '/again',
      ...denied('no_entitlement'),
    })
    club.shop.advance(day + 1_000)
    await club.refused(await signFor(wallet, '/again'), {
      path: '/again',
      ...denied('no_entitlement'),
    })
    expect((await club.send('/again', { 'payment-redeem': token })).status).not.toBe(200)
    club.shop.advance(-day - 1_000)
  })

  test('attack: a payment that was refunded is not fetched again', async () => {
    const wallet = await club.wallet()
    const token = await paid(wallet)
    const refund = await club.shop.ledger.refunds.request({
      ...{ paymentId: String(newest().id), account: account(8).address, amountAtomic: 1n },
      ...{
        reason: 'operator' as const,
        note: undefined,
        perDayAtomic: 10n ** 9n,
        now: club.shop.now(),
      },
    })
    expect(refund).toBe('requested')
    await club.refused(await signFor(wallet, '/again'), {
      path: '/again',
      ...denied('no_entitlement'),
    })
    const before = club.books()
    const response = await club.send('/again', { 'payment-redeem': token })
    expect([response.status >= 400 && response.status < 500, club.books()]).toEqual([true, before])
  })

  test('attack: an undelivered payment that was refunded cannot be redeemed', async () => {
    const wallet = await club.wallet()
    club.shop.upstream.script = (_, reply) => reply.send(500, '{}')
    const failed = await buy(club.at('/again'), { ...x402, signer: wallet })
    const { redeem } = (await failed.json()) as { redeem: { token: string } }
    club.shop.upstream.script = undefined
    await club.shop.ledger.refunds.request({
      ...{ paymentId: String(newest().id), account: account(8).address, amountAtomic: undefined },
      ...{
        reason: 'operator' as const,
        note: undefined,
        perDayAtomic: 10n ** 9n,
        now: club.shop.now(),
      },
    })
    const before = club.books()
    const answers = await Promise.all([
      club.send('/again', { 'payment-redeem': redeem.token }),
      club.send('/again', await signFor(wallet, '/again')),
    ])
    for (const { status } of answers) expect(status >= 400 && status < 500).toBe(true)
    expect(club.books()).toEqual(before)
  })
})

const newest = () =>
  club.shop.rows('SELECT id, state FROM payments ORDER BY created_at DESC, id LIMIT 1')[0] ?? {}
const running = () =>
  Number(club.shop.rows("SELECT count(*) AS n FROM entitlement_uses WHERE state = 'running'")[0]?.n)
const linesOf = (headers: Record<string, string>) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${value}`)

function tokenOf(network: string): `0x${string}` {
  const found = club.shop.config.networks.find(({ id }) => id === network)?.asset.address
  if (found === undefined) throw new Error(`no ${network}`)
  return found
}
