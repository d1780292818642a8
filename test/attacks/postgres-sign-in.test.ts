import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { type AppPair, startAppPair } from '../harness/app-pair'
import { ask } from '../harness/buyer'
import { base, type Club, startClub } from '../harness/club'
import { hasPostgres } from '../harness/postgres'
import { buy } from '../harness/shop'
import { signIn } from '../harness/siwe'
import { until } from '../harness/world'

/** Two gateways over one database, at which wallets use passes, trials and re-access. */

setDefaultTimeout(60_000)

let club: Club
let pair: AppPair
const buyer = account(1).local()
const at = (gateway: number, path: string) => `${pair.apps[gateway]?.url}/m/club${path}`
const signedAt = async (gateway: number, path: string, wallet = buyer) =>
  signIn(await ask(at(gateway, path)), wallet, { signed: { chainId: base } })
const reasonOf = async (response: Response) =>
  ((await response.json()) as { reason?: string }).reason

/** Statuses of so many requests at both gateways at once, each with a nonce of its own. */
async function together(count: number, path: string, wallet = buyer): Promise<number[]> {
  const headers = await Promise.all(
    Array.from({ length: count }, (_, index) => signedAt(index % 2, path, wallet)),
  )
  // Signed in for at one gateway, and used at the other.
  const answers = await Promise.all(
    headers.map((each, index) => fetch(at((index + 1) % 2, path), { headers: each })),
  )
  return answers.map(({ status }) => status).sort()
}

describe.skipIf(!hasPostgres)('a sign-in at two gateways', () => {
  beforeAll(async () => {
    club = await startClub()
    pair = await startAppPair(club.shop.config)
  })
  afterAll(async () => {
    await pair?.stop()
    await club?.shop.stop()
  })

  test('attack 11: a nonce that one gateway has taken is refused at the other', async () => {
    expect((await buy(at(0, '/data/pass'), { scheme: 'x402-eip3009' })).status).toBe(200)
    const headers = await signedAt(0, '/data')
    expect((await fetch(at(1, '/data'), { headers })).status).toBe(200)
    const again = await fetch(at(0, '/data'), { headers })
    expect([again.status, await reasonOf(again)]).toEqual([402, 'invalid_siwx_nonce'])
    const other = await signedAt(1, '/data')
    const all = await Promise.all(
      Array.from({ length: 10 }, (_, index) => fetch(at(index % 2, '/data'), { headers: other })),
    )
    expect(all.filter(({ status }) => status === 200)).toHaveLength(1)
    for (const response of all.filter(({ status }) => status !== 200))
      expect([response.status, await reasonOf(response)]).toEqual([402, 'invalid_siwx_nonce'])
  })

  test('attack 11: the counters of passes, trials and days are those of all gateways', async () => {
    expect((await buy(at(0, '/few/pass'), { scheme: 'x402-eip3009' })).status).toBe(200)
    expect(await together(10, '/few')).toEqual([200, 200, ...Array(8).fill(402)])
    const wallet = await club.wallet()
    expect(await together(10, '/trial', wallet)).toEqual([200, 200, ...Array(8).fill(402)])
    const others = await Promise.all(Array.from({ length: 3 }, () => club.wallet()))
    const answers = await Promise.all(others.map((each) => together(4, '/trial', each)))
    // The pool of the day is 5, of which 2 are used.
    expect(answers.flat().filter((status) => status === 200)).toHaveLength(3)
  })

  test('attack 11: what is paid at one gateway is fetched again at both as often as it may be', async () => {
    const paid = await buy(at(0, '/again'), { scheme: 'x402-eip3009' })
    expect(paid.status).toBe(200)
    await paid.text()
    const token = { 'payment-redeem': paid.headers.get('payment-redeem') ?? '' }
    // The end of its delivery is written after the answer was sent.
    await until('it was delivered', async () => {
      const first = await fetch(at(1, '/again'), { headers: await signedAt(1, '/again') })
      return first.status === 200
    })
    const signed = await Promise.all([0, 1, 0].map((gateway) => signedAt(gateway, '/again')))
    const answers = await Promise.all(
      [...signed, token, token, token].map((headers, index) =>
        fetch(at(index % 2, '/again'), { headers }),
      ),
    )
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(2)
  })
})
