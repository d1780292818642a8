// The reference stack by channels: the Hono middleware, its server of the scheme with its state in memory,
// and the reference facilitator with a tuned viem wallet, in one process. The handler asks the upstream.
// Arguments: the chain's URL, the upstream's URL.

import { x402Facilitator } from '@x402/core/facilitator'
import type { FacilitatorClient } from '@x402/core/server'
import { BatchSettlementEvmScheme as FacilitatorScheme } from '@x402/evm/batch-settlement/facilitator'
import { BatchSettlementEvmScheme as ServerScheme } from '@x402/evm/batch-settlement/server'
import { paymentMiddleware, x402ResourceServer } from '@x402/hono'
import { Hono } from 'hono'
import { account } from '../../../../src/demo/accounts'
import { network, networkId } from '../../paid/network'
import { facilitatorSigner } from '../../paid/servers/signer'
import { createWallet } from '../../paid/servers/wallet'
import { payee } from '../../shipped'
import { path, priceAtomic } from '../merchant'

const [rpcUrl = '', upstream = ''] = process.argv.slice(2)
const facilitator = new x402Facilitator().register(
  networkId,
  new FacilitatorScheme(facilitatorSigner(createWallet(rpcUrl, 'tuned'))),
)
const client: FacilitatorClient = {
  verify: (payload, requirements) => facilitator.verify(payload, requirements),
  settle: (payload, requirements) => facilitator.settle(payload, requirements),
  getSupported: async () =>
    facilitator.getSupported() as Awaited<ReturnType<FacilitatorClient['getSupported']>>,
}
const authorizer = account(6).local()
const scheme = new ServerScheme(payee, {
  receiverAuthorizerSigner: {
    address: authorizer.address,
    signTypedData: (typed) =>
      authorizer.signTypedData(typed as Parameters<typeof authorizer.signTypedData>[0]),
  },
})
const { asset } = network()
const accepts = {
  scheme: 'batch-settlement',
  network: networkId,
  payTo: payee,
  price: { amount: String(priceAtomic), asset: asset.address },
  extra: { ...asset.eip712, assetTransferMethod: 'eip3009' },
} as const
const hono = new Hono()
hono.use(
  paymentMiddleware(
    { [`GET ${path}`]: { accepts, description: 'A joke', mimeType: 'application/json' } },
    new x402ResourceServer(client).register(networkId, scheme),
  ),
)
hono.get(path, async (context) => context.json(await (await fetch(`${upstream}/item`)).json()))
// By default Bun closes a connection whose answer takes more than ten seconds.
const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: hono.fetch, idleTimeout: 60 })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
