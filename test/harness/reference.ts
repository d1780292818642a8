import { x402Facilitator } from '@x402/core/facilitator'
import { toFacilitatorEvmSigner } from '@x402/evm'
import { BatchSettlementEvmScheme } from '@x402/evm/batch-settlement/facilitator'
import { ExactEvmScheme } from '@x402/evm/exact/facilitator'
import { UptoEvmScheme } from '@x402/evm/upto/facilitator'
import {
  createWalletClient,
  defineChain,
  type Hex,
  http,
  publicActions,
  type TransactionReceipt,
  TransactionReceiptNotFoundError,
} from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { until } from './world'

export type Reference = Pick<x402Facilitator, 'verify' | 'settle' | 'getSupported'>

export type ReferenceOptions = {
  /** Index of the demo account that sends its settlements. */
  relayer?: number
}

/** The reference facilitator with the viem wallet that its documentation builds. */
export function createReference(
  networks: readonly Pick<NetworkConfig, 'id' | 'chainId' | 'name'>[],
  urlOf: (id: NetworkConfig['id']) => string,
  options: ReferenceOptions = {},
): Reference {
  const facilitator = new x402Facilitator()
  for (const { id, chainId, name } of networks) {
    const wallet = createWalletClient({
      account: privateKeyToAccount(account(options.relayer ?? 9).privateKey),
      chain: defineChain({
        id: chainId,
        name,
        nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
        rpcUrls: { default: { http: [urlOf(id)] } },
        contracts: { multicall3: { address: '0xcA11bde05977b3631167028862bE2a173976CA11' } },
      }),
      transport: http(urlOf(id)),
    }).extend(publicActions)
    const signer = toFacilitatorEvmSigner({
      address: wallet.account.address,
      getCode: (args) => wallet.getCode(args),
      readContract: (args) => wallet.readContract({ ...args, args: args.args ?? [] }),
      verifyTypedData: (args) =>
        wallet.verifyTypedData(args as Parameters<typeof wallet.verifyTypedData>[0]),
      writeContract: (args) => wallet.writeContract(args),
      sendTransaction: (args) => wallet.sendTransaction(args),
      waitForTransactionReceipt: ({ hash }) =>
        receiptOf(hash, () => wallet.getTransactionReceipt({ hash })),
    })
    facilitator.register(id, new ExactEvmScheme(signer))
    facilitator.register(id, new UptoEvmScheme(signer))
    facilitator.register(id, new BatchSettlementEvmScheme(signer))
  }
  return facilitator
}

/**
 * Asks until the receipt is there. viem's own wait asks once for each block. It never ends when a node
 * shows the block before the receipt, and no later block comes.
 */
async function receiptOf(
  hash: Hex,
  ask: () => Promise<TransactionReceipt>,
): Promise<TransactionReceipt> {
  let receipt: TransactionReceipt | undefined
  await until(`${hash} has a receipt`, async () => {
    receipt = await ask().catch((error) => {
      if (error instanceof TransactionReceiptNotFoundError) return undefined
      throw error
    })
    return receipt !== undefined
  })
  if (receipt === undefined) throw new Error(`no receipt of ${hash}`)
  return receipt
}
