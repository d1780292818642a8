import { expect } from 'bun:test'
import { type Address, type Hex, type LocalAccount, numberToHex } from 'viem'
import { type Chain, mine } from '../../src/demo/chains'
import { ask } from './buyer'
import { buy, type Shop, type ShopOptions, startShop, type Terms } from './shop'
import { type SignInOptions, signIn } from './siwe'
import { freshWallet, setTokens } from './sponsor'

/**
 * A shop whose merchant `club` gives entitlements, with what it has counted. Prices are 0.005 and
 * 0.05 for a pass; the pool of a trial is 5 a day.
 */

export const base = 'eip155:8453'
export const robinhood = 'eip155:4663'

const pass = 'pass = { price = "0.05", period = "24h", requests = 500 }'
const trial =
  'trial = { requests = 2, per = "wallet", total_per_day = 5, min_balance = "0.10", min_balance_age_blocks = 3 }'

const route = (path: string, terms: string) => `
[[merchants.routes]]
path = "${path}"
methods = ["GET", "POST"]
price = "0.005"
${terms}
`

/** Slug, and the tables of its routes. */
const merchant = (slug: string, routes: string) => `
[[merchants]]
slug = "${slug}"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
timeout_ms = 60000
${routes}`

const merchants = [
  merchant(
    'club',
    route('/data', pass) +
      route('/other', pass) +
      route('/few', 'pass = { price = "0.05", period = "24h", requests = 2 }') +
      route('/again', 'again = "24h"\nagain_max = 3') +
      route('/trial', trial) +
      route('/second', trial) +
      route('/plain', ''),
  ),
  merchant('rival', route('/data', pass)),
].join('')

export type Club = {
  shop: Shop
  /** URL of a path of the merchant `club`, or of one with the slug in front. */
  at(path: string): string
  chain(network?: `eip155:${number}`): Chain
  /** What was counted and sent on behalf of buyers so far. */
  books(): Books
  /** The 402 of a path, signed in for. */
  signIn(
    signer: LocalAccount,
    path?: string,
    options?: SignInOptions & { init?: RequestInit | undefined },
  ): Promise<Record<string, string>>
  send(path: string, headers: Record<string, string>, init?: RequestInit): Promise<Response>
  /** Expects a refusal, of which nothing is counted, written or forwarded. Resolves with its problem. */
  refused(headers: Record<string, string>, expected: Refusal): Promise<Record<string, unknown>>
  /** Expects a refusal of a sign-in, or a 400 that names its header. Nothing is counted either. */
  refusedAsInput(
    what: string,
    headers: Record<string, string>,
    path?: string,
  ): Promise<Record<string, unknown>>
  /** Expects the answer of the upstream, which is counted once. */
  served(headers: Record<string, string>, path?: string, init?: RequestInit): Promise<Response>
  /** Buys a pass and expects it. */
  buyPass(terms?: Terms, path?: string): Promise<void>
  /** A wallet that was never used, with this balance on a network since `ageBlocks`. */
  wallet(options?: {
    atomic?: bigint
    network?: `eip155:${number}`
    ageBlocks?: number
  }): Promise<ReturnType<typeof freshWallet>>
}

type Books = Readonly<Record<string, number>>

type Refusal = {
  path?: string
  init?: RequestInit | undefined
  status?: number
  code?: string
  reason?: string | RegExp | undefined
}

export async function startClub(options: ShopOptions = {}): Promise<Club> {
  const shop = await startShop({
    ...options,
    edit: (text) => {
      const own = `${text}${merchants}`.replace(/^#? ?paid_per_minute = .*$/m, '')
      const fast = own.replace('[service]', '[service]\npaid_per_minute = 1000000')
      return options.edit?.(fast) ?? fast
    },
  })
  const asset = (network: string) => {
    const found = shop.config.networks.find(({ id }) => id === network)?.asset.address
    if (found === undefined) throw new Error(`no ${network}`)
    return found
  }
  const number = (sql: string) => Number(shop.rows(`SELECT ${sql} AS n`)[0]?.n)
  const club: Club = {
    shop,
    at: (path) => `${shop.url}/m/${path.startsWith('/') ? 'club' : ''}${path}`,
    chain(network = base) {
      const chain = shop.chains[network]
      if (chain === undefined) throw new Error(`no ${network}`)
      return chain
    },
    books: () => ({
      forwarded: shop.upstream.requests.length,
      entitlements: number('(SELECT count(*) FROM entitlements)'),
      uses: number('(SELECT coalesce(sum(uses), 0) FROM entitlements)'),
      attempts: number('(SELECT coalesce(sum(attempts), 0) FROM entitlements)'),
      nonces: number('(SELECT count(*) FROM entitlement_uses)'),
      payments: number('(SELECT count(*) FROM payments)'),
      deliveries: number('(SELECT coalesce(sum(attempts), 0) FROM payments)'),
    }),
    async signIn(signer, path = '/data', { init, ...options } = {}) {
      return signIn(await ask(club.at(path), init), signer, options)
    },
    send: (path, headers, init) =>
      fetch(club.at(path), { ...init, headers: { ...headersOf(init), ...headers } }),
    async refused(headers, refusal) {
      const { path = '/data', init, status = 402, code = 'sign-in-refused', reason } = refusal
      const before = club.books()
      const response = await club.send(path, headers, init)
      const problem = (await response.json()) as Record<string, unknown>
      const expected = reason instanceof RegExp ? expect.stringMatching(reason) : reason
      const got = { status: response.status, code: problem.code, reason: problem.reason }
      expect({ ...got, ...club.books(), headers }).toEqual({
        ...{ status, code, reason: expected, ...before, headers },
      })
      return problem
    },
    async refusedAsInput(what, headers, path = '/data') {
      const before = club.books()
      const response = await club.send(path, headers)
      const problem = (await response.json()) as Record<string, unknown>
      const { code, detail } = problem
      expect({ what, status: response.status, code, ...club.books() }).toEqual({
        ...{ what, status: expect.any(Number), code: expect.any(String), ...before },
      })
      expect([what, [400, 402]]).toEqual([what, expect.arrayContaining([response.status])])
      if (response.status === 400)
        expect([what, detail]).toEqual([what, expect.stringContaining('SIGN-IN-WITH-X')])
      return problem
    },
    async served(headers, path = '/data', init) {
      const before = club.books()
      const response = await club.send(path, headers, init)
      const { forwarded = 0, uses = 0, nonces = 0 } = club.books()
      expect({ status: response.status, forwarded, uses, nonces }).toEqual({
        status: 200,
        forwarded: (before.forwarded ?? 0) + 1,
        uses: expect.any(Number),
        nonces: (before.nonces ?? 0) + 1,
      })
      expect(uses).toBeGreaterThan(before.uses ?? 0)
      return response
    },
    async buyPass(terms = {}, path = '/data') {
      const response = await buy(club.at(`${path}/pass`), { scheme: 'x402-eip3009', ...terms })
      expect([response.status, await response.json()]).toEqual([
        200,
        expect.objectContaining({ pass: expect.any(Object) }),
      ])
    },
    async wallet({ atomic = 1_000_000n, network = base, ageBlocks = 4 } = {}) {
      const made = freshWallet()
      const chain = club.chain(network)
      await setTokens(chain, asset(network), [made.address], atomic)
      await mine(chain, ageBlocks)
      return made
    },
  }
  return club
}

function headersOf(init: RequestInit | undefined): Record<string, string> {
  return (init?.headers ?? {}) as Record<string, string>
}

/** Gives an address code and the first word of its storage. */
export async function setCode(chain: Chain, at: Address, code: Hex, word: bigint): Promise<void> {
  await chain.rpc('anvil_setCode', [at, code])
  const content = numberToHex(word, { size: 32 })
  await chain.rpc('anvil_setStorageAt', [at, numberToHex(0, { size: 32 }), content])
}
