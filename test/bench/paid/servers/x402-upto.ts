// The reference x402 stack by the scheme `upto`: the Hono middleware and the reference facilitator in
// one process. The handler asks the upstream and names what its answer costs. Arguments: the chain's
// URL, the upstream's URL, the wallet's mode.

import { x402Facilitator } from '@x402/core/facilitator'
import type { FacilitatorClient } from '@x402/core/server'
import { UptoEvmScheme as FacilitatorScheme } from '@x402/evm/upto/facilitator'
import { UptoEvmScheme as ServerScheme } from '@x402/evm/upto/server'
import { paymentMiddleware, setSettlementOverrides, x402ResourceServer } from '@x402/hono'
import { Hono } from 'hono'
import { payee } from '../../shipped'
import { costOf, type ModelAnswer, modelPath } from '../model'
import { networkId } from '../network'
import { facilitatorSigner } from './signer'
import { createWallet, modeOf } from './wallet'

const [rpcUrl = '', upstream = '', word] = process.argv.slice(2)
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
const accepts = { scheme: 'upto', price: '$0.05', network: networkId, payTo: payee } as const
const hono = new Hono()
hono.use(
  paymentMiddleware(
    { [`POST ${modelPath}`]: { accepts, description: 'A chat', mimeType: 'application/json' } },
    new x402ResourceServer(client).register(networkId, new ServerScheme()),
  ),
)
hono.post(modelPath, async (context) => {
  const response = await fetch(`${upstream}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: await context.req.arrayBuffer(),
  })
  const answer = (await response.json()) as ModelAnswer
  setSettlementOverrides(context, { amount: String(costOf(answer)) })
  return context.json(answer)
})
// By default Bun closes a connection whose answer takes more than ten seconds.
const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: hono.fetch, idleTimeout: 60 })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
