import { encodeFunctionData, erc20Abi, multicall3Abi, parseAbi } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { type Chain, execute, multicall3Address } from '../../src/demo/chains'

const abi = parseAbi(['function mint(address to, uint256 value)'])

export type Payer = ReturnType<typeof privateKeyToAccount>

/** Accounts of their own with 400 USDG each and the approval of Permit2. */
export async function fund(chain: Chain, asset: `0x${string}`, count: number): Promise<Payer[]> {
  const payers = Array.from({ length: count }, (_, index) =>
    privateKeyToAccount(`0x${(index + 1).toString(16).padStart(64, '7')}`),
  )
  const approve = encodeFunctionData({
    abi: erc20Abi,
    functionName: 'approve',
    args: ['0x000000000022D473030F116dDEE9F6B43aC78BA3', 2n ** 256n - 1n],
  })
  const mints = payers.map(({ address }) => ({
    target: asset,
    allowFailure: false,
    callData: encodeFunctionData({ abi, functionName: 'mint', args: [address, 400_000_000n] }),
  }))
  const data = encodeFunctionData({ abi: multicall3Abi, functionName: 'aggregate3', args: [mints] })
  await execute(chain, [{ from: account(9).address, to: multicall3Address, data, gas: 9_000_000n }])
  for (const { address } of payers) {
    await chain.rpc('anvil_setBalance', [address, '0xde0b6b3a7640000'])
    await chain.rpc('anvil_impersonateAccount', [address])
  }
  await execute(
    chain,
    payers.map(({ address }) => ({ from: address, to: asset, data: approve, gas: 100_000n })),
  )
  return payers
}
