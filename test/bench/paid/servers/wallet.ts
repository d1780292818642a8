import { createWalletClient, http, nonceManager, publicActions } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { base } from 'viem/chains'
import { account } from '../../../../src/demo/accounts'

/**
 * How much the peers' wallet is tuned: `shipped` is what their documentation builds, `tuned`
 * assigns account nonces in memory and polls for receipts every 50 ms, `sync` also lets the node
 * wait.
 */
export type Mode = 'shipped' | 'tuned' | 'sync'

/** The relayer's viem client, which reads and writes. */
export function createWallet(rpcUrl: string, mode: Mode) {
  const { privateKey } = account(0)
  const isTuned = mode !== 'shipped'
  return createWalletClient({
    account: privateKeyToAccount(privateKey, isTuned ? { nonceManager } : {}),
    chain: base,
    transport: http(rpcUrl),
    ...(isTuned ? { pollingInterval: 50 } : {}),
  }).extend(publicActions)
}

/** The mode that a server script was started with. Throws for any other text. */
export function modeOf(text: string | undefined): Mode {
  if (text === 'shipped' || text === 'tuned' || text === 'sync') return text
  throw new Error(`${text} is not a mode`)
}
