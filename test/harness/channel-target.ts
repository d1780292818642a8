import { expect } from 'bun:test'
import type { Hex, LocalAccount } from 'viem'
import { account } from '../../src/demo/accounts'
import { type Chain, execute } from '../../src/demo/chains'
import { ask, type Required, settlementOf, wholeOf } from './buyer'
import { type ChannelTerms, channelFor, channelOffer, signChannel } from './channel'
import { type ChannelConfig, channelIdOf, settlementAddress } from './channel-contract'
import { units } from './meter'
import { payee, type Shop, type ShopOptions, startShop } from './shop'
import { freshWallet, setAllowances, setTokens } from './sponsor'
import { until } from './world'

/**
 * A shop that sells by channels on 8453 (deposits by EIP-3009) and 4663 (by Permit2), with what it has
 * counted. Its prices are 0.005 unless a route has another one.
 */

export const base = 'eip155:8453'
export const robinhood = 'eip155:4663'

const route = (path: string, more = 'methods = ["GET", "POST"]', price = '0.005') => `
[[merchants.routes]]
path = "${path}"
price = "${price}"
${more}
`
const merchant = (slug: string, routes: string, more = '') => `
[[merchants]]
slug = "${slug}"
upstream = "https://shop.example.com"
networks = ["${base}", "${robinhood}"]
payer_credit = "1000"
losses_per_day = "1000"
new_streams = "passed"
${more}
${routes}`

const metered = `methods = ["POST"]
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}`

/** What buys `/dear` is claimed at once. */
const channelsOf = (network: string) => `
[networks."${network}".channels]
withdraw_delay = "15min"
min_deposit = "0.05"
claim_every = "1min"
claim_above = "0.02"
unclaimed_max = "50"
`

const merchants = [
  merchant(
    'store',
    route('/item') +
      route('/other') +
      route('/post', 'methods = ["POST"]') +
      route('/dear', undefined, '0.02') +
      route('/exact', 'schemes = ["exact"]') +
      route('/again', 'again = "24h"') +
      route('/data', 'pass = { price = "0.05", period = "24h", requests = 5 }') +
      route('/chat', metered, '0.05'),
  ),
  merchant('rival', route('/item'), `payout = "${account(4).address}"`),
].join('')

export type ChannelTarget = {
  shop: Shop
  chain(network?: `eip155:${number}`): Chain
  /** URL of a path of the merchant `store`, or of one with the slug in front. */
  at(path: string): string
  /** A payer that was never used, with 1 USD and a large allowance for Permit2. */
  wallet(network?: `eip155:${number}`): Promise<LocalAccount>
  /** The credential for a request. */
  sign(path: string, terms?: Signing): Promise<Record<string, string>>
  send(path: string, headers: Record<string, string>, init?: RequestInit): Promise<Response>
  /** Opens a channel by a deposit of 0.1, which buys `/item` once: 5,000 are charged. */
  open(signer?: LocalAccount, terms?: Signing): Promise<Opened>
  /** Lets the gateway look at the chain: buys what is claimed at once, and waits for that. */
  look(): Promise<void>
  /** Its row; undefined: unknown. */
  row(id: Hex): Row | undefined
  books(): Promise<Books>
  /** Expects a refusal, by which nothing is charged, reserved, sent, moved or forwarded. */
  refused(
    path: string,
    headers: Record<string, string>,
    expected?: { status?: number | 'any'; reason?: string | RegExp; init?: RequestInit },
  ): Promise<Refused>
  /** Expects the answer, and resolves with what was charged for it. */
  served(path: string, headers: Record<string, string>, init?: RequestInit): Promise<bigint>
  /** A transaction of an account, which needs no key. */
  sendFrom(from: Hex, call: { to: Hex; data: Hex }, network?: `eip155:${number}`): Promise<void>
  stop(): Promise<void>
}

export type Signing = ChannelTerms & { signer?: LocalAccount; init?: RequestInit }
export type Opened = { signer: LocalAccount; config: ChannelConfig; id: Hex }
type Row = Readonly<Record<string, string | number | null>>
type Books = Readonly<Record<string, number | string>>
export type Refused = { required: Required; problem: Record<string, unknown>; response: Response }

export async function startChannelTarget(options: ShopOptions = {}): Promise<ChannelTarget> {
  const shop = await startShop({
    ...options,
    env: { RECEIVER_AUTHORIZER_KEY: account(6).privateKey, ...options.env },
    edit: (text) => {
      const own = `${text}${merchants}${channelsOf(base)}${channelsOf(robinhood)}`
      const fast = own
        .replace(/^#? ?paid_per_minute = .*$/m, '')
        .replace('[service]', '[service]\npaid_per_minute = 1000000')
      return options.edit?.(fast) ?? fast
    },
  })
  const chain = (network: `eip155:${number}` = base) => {
    const found = shop.chains[network]
    if (found === undefined) throw new Error(`no ${network}`)
    return found
  }
  const tokenOf = (network: string) => {
    const found = shop.config.networks.find(({ id }) => id === network)?.asset.address
    if (found === undefined) throw new Error(`no ${network}`)
    return found
  }
  const row = (id: Hex) => shop.rows(`SELECT * FROM channels WHERE id = '${id}'`)[0] as Row
  const target: ChannelTarget = {
    shop,
    chain,
    row,
    at: (path) => `${shop.url}/m/${path.startsWith('/') ? 'store' : ''}${path}`,
    async wallet(network = base) {
      const made = freshWallet()
      await setTokens(chain(network), tokenOf(network), [made.address], 1_000_000n)
      if (network === robinhood)
        await setAllowances(chain(network), tokenOf(network), [made.address], 10n ** 12n)
      return made
    },
    sign: (path, terms = {}) => signChannel(target.at(path), terms),
    send: (path, headers, init) =>
      fetch(target.at(path), {
        ...init,
        headers: { ...(init?.headers as Record<string, string>), ...headers },
      }),
    async open(given, terms = {}) {
      const network = (terms.network ?? base) as `eip155:${number}`
      const signer = given ?? (await target.wallet(network))
      const { required, whole } = await ask(target.at('/item'))
      const offer = channelOffer({ ...required, accepts: whole.accepts }, network)
      if (offer === undefined) throw new Error('no offer of channels')
      const config = channelFor(offer, signer.address, terms.config)
      const id = channelIdOf(config, Number(network.slice('eip155:'.length)))
      const deposit = await target.sign('/item', { kind: 'deposit', signer, ...terms })
      expect(await target.served('/item', deposit)).toBe(5_000n)
      return { signer, config, id }
    },
    async look() {
      const { signer, config, id } = await target.open()
      const headers = await target.sign('/dear', { signer, config, base: 5_000n })
      expect(await target.served('/dear', headers)).toBe(20_000n)
      await until('it is claimed', () => row(id)?.claimed_atomic === '25000')
    },
    async books() {
      const number = (sql: string) => Number(shop.rows(`SELECT ${sql} AS n`)[0]?.n)
      const held = async (network: `eip155:${number}`) =>
        String(
          (await shop.balance(network, payee)) + (await shop.balance(network, settlementAddress)),
        )
      return {
        forwarded: shop.upstream.requests.length,
        channels: number('(SELECT count(*) FROM channels)'),
        charged: number('(SELECT coalesce(sum(CAST(charged_atomic AS INTEGER)), 0) FROM channels)'),
        reserved: number('(SELECT count(*) FROM channels WHERE reserved_id IS NOT NULL)'),
        payments: number('(SELECT count(*) FROM payments)'),
        authorizations: number('(SELECT count(*) FROM authorizations)'),
        entitlements: number('(SELECT count(*) FROM entitlements)'),
        // Claims and sweeps come at any time, and leave what payee and contract have together.
        jobs: number(
          "(SELECT count(*) FROM jobs WHERE NOT (id LIKE 'claim:%' OR id LIKE 'sweep:%'))",
        ),
        settling: number('(SELECT count(DISTINCT transaction_hash) FROM transaction_members)'),
        answers: number('(SELECT count(*) FROM answers)'),
        held: await held(base),
        heldUsdg: await held(robinhood),
      }
    },
    async refused(path, headers, { status = 402, reason, init } = {}) {
      const before = await target.books()
      const response = await target.send(path, headers, init)
      const text = await response.text()
      const problem = (text === '' ? {} : JSON.parse(text)) as Record<string, unknown>
      const required = wholeOf(problem)
      const said = String(problem.reason ?? required?.error ?? '')
      const expected = reason instanceof RegExp ? expect.stringMatching(reason) : (reason ?? said)
      expect({ status: response.status, reason: said, ...(await target.books()) }).toEqual({
        ...{ status: status === 'any' ? expect.any(Number) : status, reason: expected, ...before },
      })
      return { required, problem, response }
    },
    async served(path, headers, init) {
      const response = await target.send(path, headers, init)
      const text = await response.text()
      expect([response.status, response.status === 200 ? '' : text]).toEqual([200, ''])
      const { extra } = settlementOf(response) as { extra?: { chargedAmount?: string } }
      return BigInt(extra?.chargedAmount ?? -1)
    },
    async sendFrom(from, call, network = base) {
      await chain(network).rpc('anvil_setBalance', [from, '0xde0b6b3a7640000'])
      await chain(network).rpc('anvil_impersonateAccount', [from])
      await execute(chain(network), [{ from, ...call, gas: 500_000n }])
    },
    stop: () => shop.stop(),
  }
  await until('channels are offered', async () => {
    const { whole } = await ask(target.at('/item'))
    const offered = whole.accepts.filter(({ scheme }) => scheme === 'batch-settlement')
    return offered.length === 2
  })
  return target
}
