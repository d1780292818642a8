import type {
  Network as NetworkName,
  PaymentPayload,
  PaymentRequirements,
  SupportedResponse,
} from '@x402/core/types'
import { BatchSettlementEvmScheme, InMemoryChannelStorage } from '@x402/evm/batch-settlement/server'
import { paymentMiddleware, setSettlementOverrides, x402ResourceServer } from '@x402/hono'
import { Hono } from 'hono'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { createReference } from './reference'
import { payee } from './shop'

/** A merchant of the reference: `@x402/hono` and its facilitator, which sell by channels. */
export type ChannelMerchant = Awaited<ReturnType<typeof startChannelMerchant>>

type Selling = {
  price?: bigint
  minDeposit?: bigint
  method?: 'eip3009' | 'permit2'
}

export async function startChannelMerchant(
  network: Pick<NetworkConfig, 'id' | 'chainId' | 'name' | 'asset'>,
  rpcUrl: string,
  { price = 10_000n, minDeposit, method }: Selling = {},
) {
  const { id, asset } = network
  const reference = createReference([network], () => rpcUrl)
  const storage = new InMemoryChannelStorage()
  const authorizer = account(6).local()
  const scheme = new BatchSettlementEvmScheme(payee, {
    storage,
    withdrawDelay: 900,
    receiverAuthorizerSigner: {
      address: authorizer.address,
      signTypedData: (typed) =>
        authorizer.signTypedData(typed as Parameters<typeof authorizer.signTypedData>[0]),
    },
  })
  const facilitator = {
    verify: (payload: PaymentPayload, requirements: PaymentRequirements) =>
      reference.verify(payload, requirements),
    settle: (payload: PaymentPayload, requirements: PaymentRequirements) =>
      reference.settle(payload, requirements),
    getSupported: async () => reference.getSupported() as SupportedResponse,
  }
  const resources = new x402ResourceServer(facilitator)
  resources.register(id as NetworkName, scheme)
  const merchant = {
    url: '',
    storage,
    /** Requests as they came. */
    requests: [] as Request[],
    /** The heads of its answers 402. */
    offers: [] as string[],
    served: 0,
    /** What an answer costs; the price by default. */
    charge: undefined as string | undefined,
    /** Called before a request is served. */
    script: undefined as
      | ((request: Request, serve: () => Promise<Response>) => Promise<Response>)
      | undefined,
    stop: () => void server.stop(true),
  }
  const hono = new Hono()
  hono.use(
    paymentMiddleware(
      {
        '/paid': {
          accepts: {
            scheme: 'batch-settlement',
            network: id as NetworkName,
            payTo: payee,
            price: { amount: String(price), asset: asset.address },
            extra: {
              ...asset.eip712,
              ...(method && { assetTransferMethod: method }),
              ...(minDeposit && { minDeposit: String(minDeposit) }),
            },
          },
          description: 'one answer',
          mimeType: 'application/json',
        },
      },
      resources,
    ),
  )
  hono.all('/paid', (context) => {
    if (merchant.charge !== undefined) setSettlementOverrides(context, { amount: merchant.charge })
    merchant.served++
    return context.json({ served: merchant.served })
  })
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    idleTimeout: 60,
    fetch: (request: Request) => {
      merchant.requests.push(request.clone() as Request)
      const serve = async () => {
        const response = await hono.fetch(request)
        const offer = response.headers.get('payment-required')
        if (offer !== null) merchant.offers.push(offer)
        return response
      }
      return merchant.script?.(request, serve) ?? serve()
    },
  })
  merchant.url = `http://127.0.0.1:${server.port}/paid`
  return merchant
}
