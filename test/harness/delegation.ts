import { type Address, createWalletClient, defineChain, type Hex, http } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import type { OwnSettlement } from './own-settlement'

const gwei = 1_000_000_000n
/** Delegating to this address removes a delegation. */
export const noCode: Address = `0x${'0'.repeat(40)}`

/**
 * Delegates an account to code (EIP-7702); another account pays. Local nodes order a block by
 * `maxFeePerGas`: it precedes transactions of the relayer, or with `isLast` follows them. That one
 * has a different payer, and continues the nonce of one that precedes them in the same block.
 */
export async function delegate(
  { net, network }: Pick<OwnSettlement, 'net' | 'network'>,
  index: number,
  to: Address,
  { isLast = false } = {},
): Promise<Hex> {
  const { chain } = net
  const signer = privateKeyToAccount(account(index).privateKey)
  const nonce = Number(await chain.rpc('eth_getTransactionCount', [signer.address, 'latest']))
  const latest = await chain.rpc('eth_getBlockByNumber', ['latest', false])
  const baseFeeWei = BigInt((latest as { baseFeePerGas: string }).baseFeePerGas)
  const client = createWalletClient({
    account: privateKeyToAccount(account(isLast ? 8 : 9).privateKey),
    chain: defineChain({
      id: network.chainId,
      name: 'local',
      nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
      rpcUrls: { default: { http: [chain.url] } },
    }),
    transport: http(chain.url),
  })
  return client.sendTransaction({
    authorizationList: [
      await signer.signAuthorization({
        chainId: network.chainId,
        address: to,
        nonce: nonce + (isLast ? 1 : 0),
      }),
    ],
    to: noCode,
    gas: 100_000n,
    maxFeePerGas: isLast ? (baseFeeWei * 11n) / 10n : 40n * gwei,
    maxPriorityFeePerGas: isLast ? 1n : gwei,
  })
}
