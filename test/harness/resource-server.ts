import type { RoutesConfig } from '@x402/core/server'
import { HTTPFacilitatorClient } from '@x402/core/server'
import { BatchSettlementEvmScheme as ChannelClientScheme } from '@x402/evm/batch-settlement/client'
import {
  type BatchSettlementChannelManager,
  BatchSettlementEvmScheme as ChannelServerScheme,
} from '@x402/evm/batch-settlement/server'
import { ExactEvmScheme as ClientScheme } from '@x402/evm/exact/client'
import { ExactEvmScheme as ServerScheme } from '@x402/evm/exact/server'
import { UptoEvmScheme as UptoClientScheme } from '@x402/evm/upto/client'
import { UptoEvmScheme as UptoServerScheme } from '@x402/evm/upto/server'
import { wrapFetchWithPayment, x402Client } from '@x402/fetch'
import { paymentMiddleware, setSettlementOverrides, x402ResourceServer } from '@x402/hono'
import { Hono } from 'hono'
import type { LocalAccount } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import type { TransferMethod } from '../../src/protocol/Asset'
import { payee } from './shop'

/** When a resource server calls its facilitator: before or after it serves. */
export type Flow = 'authorization' | 'upfront'

export type ResourceServer = {
  url: string
  served(): number
  stop(): void
  /** Claims, sweeps and refunds its channels. */
  manager: BatchSettlementChannelManager
}

export type Selling = {
  method?: TransferMethod
  flow?: Flow
  amountAtomic?: bigint
  /** Sells by `upto`, with `amountAtomic` as the ceiling: what the next answer costs. */
  charge?: () => string
  /** Sells by channels, whose claims and refunds this account signs. */
  authorizer?: LocalAccount
  /** Extensions that its 402 declares, by name. */
  extensions?: readonly string[]
  /** The key that it presents to the facilitator. */
  apiKey?: string
}

/** The reference resource server (@x402/hono) over a facilitator's URL. Sells `GET /paid`. */
export function startResourceServer(
  facilitatorUrl: string,
  network: NetworkConfig,
  selling: Selling = {},
): ResourceServer {
  const { flow = 'authorization', amountAtomic = 10_000n, charge, apiKey, authorizer } = selling
  const method = selling.method ?? (charge === undefined ? 'eip3009' : 'permit2')
  const { id, asset } = network
  const routes: RoutesConfig = {
    'GET /paid': {
      accepts: {
        scheme: authorizer ? 'batch-settlement' : charge === undefined ? 'exact' : 'upto',
        network: id,
        payTo: payee,
        price: { amount: String(amountAtomic), asset: asset.address },
        extra: {
          ...asset.eip712,
          assetTransferMethod: method,
          ...(flow === 'upfront' ? { paymentFlow: flow } : {}),
        },
      },
      description: 'one answer',
      mimeType: 'application/json',
      extensions: Object.fromEntries(
        (selling.extensions ?? []).map((name) => [
          name,
          { info: { description: name, version: '1' }, schema: { type: 'object' } },
        ]),
      ),
    },
  }
  let served = 0
  const facilitator = createFacilitatorClient(facilitatorUrl, apiKey)
  const resources = new x402ResourceServer(facilitator)
  const channels = new ChannelServerScheme(payee, {
    ...(authorizer && {
      receiverAuthorizerSigner: {
        address: authorizer.address,
        signTypedData: (text) =>
          authorizer.signTypedData(text as Parameters<LocalAccount['signTypedData']>[0]),
      },
    }),
  })
  const hono = new Hono()
  resources.register(id, new ServerScheme()).register(id, new UptoServerScheme())
  if (authorizer !== undefined) resources.register(id, channels)
  hono.use(paymentMiddleware(routes, resources))
  hono.get('/paid', (context) => {
    if (charge !== undefined) setSettlementOverrides(context, { amount: charge() })
    return context.json({ served: ++served })
  })
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: hono.fetch, idleTimeout: 60 })
  return {
    url: `http://127.0.0.1:${server.port}/paid`,
    served: () => served,
    manager: channels.createChannelManager(facilitator, id, asset.address),
    stop: () => void server.stop(true),
  }
}

/** The reference client of a facilitator. */
export function createFacilitatorClient(url: string, apiKey?: string): HTTPFacilitatorClient {
  if (apiKey === undefined) return new HTTPFacilitatorClient({ url })
  const headers = { authorization: `Bearer ${apiKey}` }
  const all = { verify: headers, settle: headers, supported: headers }
  return new HTTPFacilitatorClient({ url, createAuthHeaders: async () => all })
}

type BuyOptions = {
  rpcUrl?: string
  init?: RequestInit
  maxAtomic?: bigint
  /** Signs the payment and does not send it. */
  isUnsent?: boolean
}

/**
 * Buys with @x402/fetch. Also returns the sent `PAYMENT-SIGNATURE`, for replays. With an `rpcUrl`
 * the client reads its allowance, and signs what a sponsoring extension requests.
 */
export async function buyFrom(
  url: string,
  network: NetworkConfig,
  signer: LocalAccount,
  { rpcUrl, init, maxAtomic = 2_000_000n, isUnsent = false }: BuyOptions = {},
): Promise<{ response: Response; credential: string }> {
  const options = rpcUrl === undefined ? undefined : { rpcUrl }
  const client = new x402Client()
    .register(network.id, new ClientScheme(signer, options))
    .register(network.id, new UptoClientScheme(signer, options))
    .setSpendControls({
      allowedAssets: [
        {
          network: network.id,
          asset: network.asset.address,
          maxAmountPerPayment: String(maxAtomic),
        },
      ],
    })
  let credential = ''
  const record = async (input: string | URL | Request, init?: RequestInit) => {
    const request =
      input instanceof Request ? new Request(input, init) : new Request(`${input}`, init)
    credential = request.headers.get('payment-signature') ?? credential
    return isUnsent && credential !== '' ? new Response(null, { status: 204 }) : fetch(request)
  }
  const pay = wrapFetchWithPayment(Object.assign(record, { preconnect: fetch.preconnect }), client)
  const response = await pay(url, init)
  return { response, credential }
}

/** Presents a credential again. */
export const replay = (url: string, credential: string) =>
  fetch(url, { headers: { 'payment-signature': credential } })

/** Buys by channels with @x402/fetch, one after the other: `fetch` pays, `scheme` refunds. */
export function createChannelBuyer(network: NetworkConfig, signer: LocalAccount, rpcUrl: string) {
  const scheme = new ChannelClientScheme(signer, { rpcUrl })
  const client = new x402Client().register(network.id, scheme).setSpendControls({
    allowedAssets: [
      { network: network.id, asset: network.asset.address, maxAmountPerPayment: '2000000' },
    ],
  })
  return { scheme, fetch: wrapFetchWithPayment(fetch, client) }
}
