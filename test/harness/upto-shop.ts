import type { Address, LocalAccount } from 'viem'
import { balanceOf, type Chain } from '../../src/demo/chains'
import type * as Network from '../../src/protocol/Network'
import { units } from './meter'
import { connect, request } from './raw'
import { payee, type Shop, type ShopOptions, startShop } from './shop'
import { freshWallet, setAllowances, setTokens } from './sponsor'
import type { Reply } from './upstream'
import { signUpto, type UptoOptions } from './upto'
import { until } from './world'

/** A shop whose routes have meters, and buyers that pay by the scheme `upto`. */

/** The route of a merchant with a meter; `more`: keys of the meter. */
export const route = (more: string) => `
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
${more}
${units}
`

/** Payers that are new may do all that others may. */
const trusting = 'payer_credit = "1000"\nlosses_per_day = "1000"\nnew_streams = "passed"'

const merchants = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
${trusting}
${route('base = "0.0005"')}
[[merchants]]
slug = "patient"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
${route('missing = "base"\nbase = "0.0005"')}
[[merchants]]
slug = "free"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
${route('base = "0"')}
[[merchants]]
slug = "quick"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
timeout_ms = 3000
idle_ms = 3000
${route('base = "0.0005"')}
[[merchants]]
slug = "brief"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
timeout_ms = 1000
${route('base = "0.0005"')}
[[merchants]]
slug = "dear"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "2"
[merchants.routes.meter]
preset = "none"
base = "1.5"
[[merchants]]
slug = "named"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${trusting}
[[merchants.routes]]
path = "/chat"
methods = ["GET", "POST"]
price = "0.05"
[merchants.routes.meter]
preset = "header"
`

export const base = 'eip155:8453'
export const body = '{"model":"m","max_tokens":1000,"messages":[]}'
export const json = { 'content-type': 'application/json' }
export const events = { 'content-type': 'text/event-stream' }

export const usage = (input: number, output: number) =>
  JSON.stringify({ usage: { prompt_tokens: input, completion_tokens: output } })
/** What an answer with this usage costs, atomic. */
export const costOf = (input: number, output: number) => 500 + input + 10 * output
/** An answer that is too long to be kept. */
export const long = (usage: string) => `{"x":"${'x'.repeat(1024 * 1024)}",${usage.slice(1)}`
export const event = (text: string) => `data: ${text}\n\n`

export type Terms = Partial<UptoOptions> & {
  buyer?: number
  signer?: LocalAccount
  slug?: string
  body?: string
}

export type Wallet = ReturnType<typeof freshWallet>

export type ModelShop = Shop & {
  chat(slug?: string): string
  /** The header that pays for the request by `upto`. */
  sign(terms?: Terms): Promise<Record<string, string>>
  pay(
    credential: Record<string, string>,
    options?: {
      slug?: string
      body?: string
      headers?: Record<string, string>
      signal?: AbortSignal
    },
  ): Promise<Response>
  /** Signs and pays. */
  buy(terms?: Terms): Promise<Response>
  /** The upstream's handler of the next request. */
  nextReply(): Promise<Reply>
  /** The newest row of `authorizations`. */
  authorization(): Record<string, unknown>
  /** The newest row of `payments`. */
  payment(): Record<string, unknown>
  /** Waits until the newest authorization is in this state. */
  becomes(state: string): Promise<void>
  /** Waits until the payment of the newest authorization is in this state. */
  settles(state?: string): Promise<void>
  chain(network?: Network.Id): Chain
  asset(network?: Network.Id): Address
  paid(network?: Network.Id): Promise<bigint>
  /** A payer that was never used, whose tokens Permit2 may move. */
  wallet(balanceAtomic?: bigint, allowanceAtomic?: bigint): Promise<Wallet>
  setBalance(holder: Address, atomic: bigint): Promise<void>
  setAllowance(holder: Address, atomic: bigint): Promise<void>
  tokensOf(holder: Address, network?: Network.Id): Promise<bigint>
  events(name: string): Record<string, unknown>[]
  clear(): void
}

export async function startModels(options: ShopOptions = {}): Promise<ModelShop> {
  const edit = (text: string) => options.edit?.(text + merchants) ?? text + merchants
  const shop = await startShop({ ...options, edit })
  const one = (sql: string) => shop.rows(sql)[0] ?? {}
  const chainOf = (network: Network.Id = base): Chain => {
    const chain = shop.chains[network]
    if (chain === undefined) throw new Error(`no ${network}`)
    return chain
  }
  const assetOf = (network: Network.Id = base): Address => {
    const asset = shop.config.networks.find(({ id }) => id === network)?.asset.address
    if (asset === undefined) throw new Error(`no ${network}`)
    return asset
  }
  const own: Omit<ModelShop, keyof Shop> = {
    chat: (slug = 'model') => `${shop.url}/m/${slug}/chat`,
    sign: ({ slug, body: sent = body, ...terms } = {}) =>
      signUpto(own.chat(slug), { method: 'POST', headers: json, body: sent }, terms),
    pay: (credential, { slug, body: sent = body, headers = {}, signal } = {}) =>
      fetch(own.chat(slug), {
        method: 'POST',
        headers: { ...json, ...credential, ...headers },
        body: sent,
        ...(signal === undefined ? {} : { signal }),
      }),
    async buy({ slug, body: sent, ...terms } = {}) {
      const request = { ...(slug && { slug }), ...(sent && { body: sent }) }
      return own.pay(await own.sign({ ...request, ...terms }), request)
    },
    nextReply: () =>
      new Promise((resolve) => {
        shop.upstream.script = (_, reply) => resolve(reply)
      }),
    authorization: () => one('SELECT * FROM authorizations ORDER BY rowid DESC LIMIT 1'),
    payment: () => one('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1'),
    becomes: (state) =>
      until(`the authorization is ${state}`, () => own.authorization().state === state),
    settles: (state = 'confirmed') =>
      until(`the charge is ${state}`, () => {
        const { id } = own.authorization()
        return own.payment().id === id && own.payment().state === state
      }),
    chain: chainOf,
    asset: assetOf,
    paid: (network = base) => shop.balance(network, payee),
    async wallet(balanceAtomic = 10_000_000n, allowanceAtomic = balanceAtomic) {
      const made = freshWallet()
      await own.setBalance(made.address, balanceAtomic)
      await own.setAllowance(made.address, allowanceAtomic)
      return made
    },
    setBalance: (holder, atomic) => setTokens(chainOf(), assetOf(), [holder], atomic),
    setAllowance: (holder, atomic) => setAllowances(chainOf(), assetOf(), [holder], atomic),
    tokensOf: (holder, network) => balanceOf(chainOf(network), assetOf(network), holder),
    events: (name) =>
      shop.logged
        .map((line) => JSON.parse(line) as Record<string, unknown>)
        .filter(({ event: found }) => found === name),
    clear() {
      shop.upstream.script = undefined
      shop.upstream.requests.length = 0
      shop.logged.length = 0
      for (const tap of Object.values(shop.taps)) tap.intercept = undefined
    },
  }
  // A copy would lose the accessors of the shop.
  return Object.assign(shop, own)
}

/** Answers with this text and type. */
export const answering =
  (text: string, status = 200, headers: Record<string, string> = json) =>
  (_: unknown, reply: Reply) =>
    reply.send(status, text, headers)

/** Reads the chunks of a stream as text; '' at its end, 'broken' when it is broken off. */
export function readerOf(response: Response): () => Promise<string> {
  const reader = response.body?.getReader()
  const decoder = new TextDecoder()
  return async () => {
    try {
      return decoder.decode((await reader?.read())?.value)
    } catch {
      return 'broken'
    }
  }
}

/** A buyer on a socket of its own, which shows every byte that it gets. */
export function openBuyer(url: string, credential: Record<string, string>, sent = body) {
  const lines = Object.entries({ ...json, ...credential }).map(
    ([name, value]) => `${name}: ${value}`,
  )
  const head = request(new URL(url).pathname, [...lines, `content-length: ${sent.length}`], 'POST')
  const socket = connect(url, head + sent)
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()))
  let got = ''
  socket.on('data', (chunk) => {
    got += chunk.toString('latin1')
  })
  return {
    got: () => got,
    /** Closes its side, and returns when the gateway has closed the other. */
    leave: () => {
      socket.destroy()
      return closed
    },
    stall: () => {
      socket.pause()
      // A socket that is connecting begins to read once it is connected.
      if (socket.connecting) socket.once('connect', () => socket.pause())
    },
    readOn: () => void socket.resume(),
  }
}

/** Answers that the node is away. */
export const nodeAway = () => new Response('away', { status: 503 })
