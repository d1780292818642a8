import { type Hex, type LocalAccount, toHex } from 'viem'
import { account } from '../../src/demo/accounts'
import { type Asked, ask, askedOf } from './buyer'
import { type ChannelTerms, channelFor, channelOffer, payChannel } from './channel'
import { channelIdOf } from './channel-contract'
import { type Shop, type ShopOptions, startShop } from './shop'
import { freshWallet, setTokens } from './sponsor'
import { route } from './upto-shop'

/** A shop whose network 8453 has payment channels, and buyers that pay by them. */

export const base = 'eip155:8453'

export const channelTerms = `
[networks."eip155:8453".channels]
min_deposit = "0.04"
`

const merchants = `
${channelTerms}
[[merchants]]
slug = "one"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/item"
methods = ["GET", "POST"]
price = "0.005"
[[merchants.routes]]
path = "/other"
methods = ["GET"]
price = "0.002"
[[merchants.routes]]
path = "/posted"
methods = ["POST"]
price = "0.005"
[[merchants.routes]]
path = "/plain"
methods = ["POST"]
price = "0.005"
schemes = ["exact"]
[[merchants.routes]]
path = "/only"
methods = ["GET"]
price = "0.005"
schemes = ["channel"]
[[merchants.routes]]
path = "/kept"
methods = ["GET"]
price = "0.005"
again = "24h"
[[merchants]]
slug = "careful"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
losses_per_day = "0.01"
[[merchants.routes]]
path = "/item"
methods = ["GET"]
price = "0.01"
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${route('base = "0.0005"')}
`

export type ChannelShop = Shop & {
  at(path?: string): string
  /** A channel of a buyer that was never used. */
  channel(of?: OpenTerms): Promise<BuyersChannel>
  /** The row of a channel. */
  row(id: Hex): Record<string, unknown>
  /** The newest row of `payments`. */
  payment(): Record<string, unknown>
}

type OpenTerms = { signer?: LocalAccount; config?: ChannelTerms['config']; url?: string }

export type BuyersChannel = Awaited<ReturnType<typeof openChannel>>

/** `url`: of another gateway over the same database. */
export type Ask = ChannelTerms & { path?: string; init?: RequestInit; url?: string }

let salts = 0

/** A payer that was never used: the deposits of each are limited. */
export async function freshBuyer({ chains, config }: Shop): Promise<LocalAccount> {
  const made = freshWallet()
  const asset = config.networks.find(({ id }) => id === base)?.asset.address
  const chain = chains[base]
  if (chain === undefined || asset === undefined) throw new Error(`no ${base}`)
  await setTokens(chain, asset, [made.address], 10_000_000n)
  return made
}

async function openChannel(
  shop: ChannelShop,
  { signer, config = {}, url = shop.url }: OpenTerms = {},
) {
  const buyer = signer ?? (await freshBuyer(shop))
  const salt = toHex(Date.now() * 1000 + salts++, { size: 32 })
  const asked = await ask(`${url}/m/one/item`)
  const offer = channelOffer(asked.whole, base)
  if (offer === undefined) throw new Error('no offer of channels')
  const own = { salt, ...config }
  const whole = channelFor(offer, buyer.address, own)
  const id = channelIdOf(whole)
  const channel = {
    id,
    signer: buyer,
    payer: buyer.address,
    config: whole,
    /** The header that pays for a request. */
    async sign({
      path = '/m/one/item',
      init,
      url = shop.url,
      ...terms
    }: Ask = {}): Promise<string> {
      const asked = await ask(url + path, init)
      return payChannel(asked.whole, buyer, { ...terms, config: { ...own, ...terms.config } })
    },
    async pay(asked: Ask = {}): Promise<Response> {
      return channel.send(await channel.sign(asked), asked)
    },
    send: (
      signature: string,
      { path = '/m/one/item', init, url = shop.url }: Pick<Ask, 'path' | 'init' | 'url'> = {},
    ) =>
      fetch(url + path, {
        ...init,
        headers: { ...init?.headers, 'payment-signature': signature },
      }),
    /** Pays the first request with a deposit. */
    deposit: (asked: Ask = {}) => channel.pay({ kind: 'deposit', ...asked }),
    row: () => shop.row(id),
  }
  return channel
}

export async function startChannelShop(options: ShopOptions = {}): Promise<ChannelShop> {
  const edit = (text: string) => options.edit?.(text + merchants) ?? text + merchants
  const env = { RECEIVER_AUTHORIZER_KEY: account(6).privateKey, ...options.env }
  const shop = await startShop({ ...options, edit, env })
  const one = (sql: string) => shop.rows(sql)[0] ?? {}
  const own: Omit<ChannelShop, keyof Shop> = {
    at: (path = '/m/one/item') => shop.url + path,
    channel: (of) => openChannel(whole, of),
    row: (id) => one(`SELECT * FROM channels WHERE id = '${id}'`),
    payment: () => one('SELECT * FROM payments ORDER BY created_at DESC, id DESC LIMIT 1'),
  }
  // A copy would lose the accessors of the shop.
  const whole = Object.assign(shop, own)
  return whole
}

/** `extra` of `PAYMENT-RESPONSE`, and its other members without the extensions. */
export function settledOf(response: Response): Record<string, unknown> {
  const header = response.headers.get('payment-response') ?? ''
  if (header === '') return {}
  const { extensions: _, ...settled } = JSON.parse(atob(header))
  return settled
}

/** What a corrective 402 says: its error, and what its head adds to the entry of the channel. */
export async function correctionOf(response: Response): Promise<{
  status: number
  error?: string
  charged?: string
  signed?: string
  response: string | null
  asked: Asked
}> {
  const own = response.headers.get('payment-response')
  const asked = await askedOf(response)
  const { error } = asked.required
  const extra = channelOffer(asked.required, base)?.extra as Record<string, unknown> | undefined
  const state = extra?.channelState as Record<string, string> | undefined
  const voucher = extra?.voucherState as Record<string, string> | undefined
  return {
    status: response.status,
    error,
    ...(state && { charged: state.chargedCumulativeAmount }),
    ...(voucher && { signed: voucher.signedMaxClaimable }),
    response: own,
    asked,
  }
}
