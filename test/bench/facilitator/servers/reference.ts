// The reference facilitator with a viem wallet behind Bun's plain HTTP server, without the
// framework of its examples. Arguments: the chain's URL, the wallet's mode.

import { x402Facilitator } from '@x402/core/facilitator'
import { toFacilitatorEvmSigner } from '@x402/evm'
import { ExactEvmScheme } from '@x402/evm/exact/facilitator'
import { networkId } from '../../paid/network'
import { createWallet, modeOf } from '../../paid/servers/wallet'

const [rpcUrl = '', word] = process.argv.slice(2)
const wallet = createWallet(rpcUrl, modeOf(word))
const facilitator = new x402Facilitator().register(
  networkId,
  new ExactEvmScheme(
    toFacilitatorEvmSigner({
      address: wallet.account.address,
      getCode: (args) => wallet.getCode(args),
      readContract: (args) => wallet.readContract({ ...args, args: args.args ?? [] }),
      verifyTypedData: (args) =>
        wallet.verifyTypedData(args as Parameters<typeof wallet.verifyTypedData>[0]),
      writeContract: (args) => wallet.writeContract(args),
      sendTransaction: (args) => wallet.sendTransaction(args),
      waitForTransactionReceipt: (args) => wallet.waitForTransactionReceipt(args),
    }),
  ),
)

type Asked = {
  paymentPayload: Parameters<typeof facilitator.verify>[0]
  paymentRequirements: Parameters<typeof facilitator.verify>[1]
}

const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  idleTimeout: 60,
  async fetch(request) {
    const { paymentPayload, paymentRequirements } = (await request.json()) as Asked
    const operation = request.url.endsWith('/verify') ? 'verify' : 'settle'
    try {
      return Response.json(await facilitator[operation](paymentPayload, paymentRequirements))
    } catch (error) {
      return Response.json({ error: String(error) }, { status: 500 })
    }
  },
})
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
