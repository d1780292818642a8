// The reference x402 stack: the Hono middleware and the reference facilitator with a viem wallet,
// in one process, without HTTP requests between the two. Arguments: the chain's URL, the wallet's
// mode.

import { x402Facilitator } from '@x402/core/facilitator'
import type { FacilitatorClient } from '@x402/core/server'
import { ExactEvmScheme as FacilitatorScheme } from '@x402/evm/exact/facilitator'
import { ExactEvmScheme as ServerScheme } from '@x402/evm/exact/server'
import { paymentMiddleware, x402ResourceServer } from '@x402/hono'
import { Hono } from 'hono'
import { payee } from '../../shipped'
import { networkId, path } from '../network'
import { facilitatorSigner } from './signer'
import { createWallet, modeOf } from './wallet'

const [rpcUrl = '', word] = process.argv.slice(2)
const wallet = createWallet(rpcUrl, modeOf(word))
const facilitator = new x402Facilitator().register(
  networkId,
  new FacilitatorScheme(facilitatorSigner(wallet)),
)
const client: FacilitatorClient = {
  verify: (payload, requirements) => facilitator.verify(payload, requirements),
  settle: (payload, requirements) => facilitator.settle(payload, requirements),
  getSupported: async () =>
    facilitator.getSupported() as Awaited<ReturnType<FacilitatorClient['getSupported']>>,
}
const accepts = { scheme: 'exact', price: '$0.01', network: networkId, payTo: payee } as const
const hono = new Hono()
hono.use(
  paymentMiddleware(
    { [`GET ${path}`]: { accepts, description: 'A joke', mimeType: 'application/json' } },
    new x402ResourceServer(client).register(networkId, new ServerScheme()),
  ),
)
hono.get(path, (context) => context.json({ joke: 'A cat walks into a paywall.' }))
// By default Bun closes a connection whose answer takes more than ten seconds.
const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: hono.fetch, idleTimeout: 60 })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
