import { toFacilitatorEvmSigner } from '@x402/evm'
import type { createWallet } from './wallet'

/** The reference facilitator's view of a viem wallet. */
export function facilitatorSigner(wallet: ReturnType<typeof createWallet>) {
  return toFacilitatorEvmSigner({
    address: wallet.account.address,
    getCode: (args) => wallet.getCode(args),
    readContract: (args) => wallet.readContract({ ...args, args: args.args ?? [] }),
    verifyTypedData: (args) =>
      wallet.verifyTypedData(args as Parameters<typeof wallet.verifyTypedData>[0]),
    writeContract: (args) => wallet.writeContract(args),
    sendTransaction: (args) => wallet.sendTransaction(args),
    waitForTransactionReceipt: (args) => wallet.waitForTransactionReceipt(args),
  })
}
