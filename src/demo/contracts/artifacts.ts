import type { Abi, Address, Hex } from 'viem'
import generated from './artifacts.generated.json'
import vendored from './vendored.json'

/** A compiled contract: creation and runtime bytecode. */
export type Artifact = { abi: Abi; bytecode: Hex; deployedBytecode: Hex }

/** Contracts of this folder, compiled by build.ts. */
export const {
  Stablecoin,
  StockRegistry,
  StockToken,
  PriceFeed,
  LiquidityProvider,
  BatchSettlement,
  Eip3009DepositCollector,
  Permit2DepositCollector,
} = generated as unknown as Record<keyof typeof generated, Artifact>

/** A contract of others at the address that its salt gives it. Creation bytecode. */
type Deployed = { address: Address; salt: Hex; bytecode: Hex }

/** The real Permit2, and the real proxies of the schemes `exact` and `upto`. */
export const deployed = [vendored.permit2, vendored.exactProxy, vendored.uptoProxy] as Deployed[]

/**
 * Ours in place of x402's contracts of payment channels, at their addresses, which clients have built
 * in. Only the runtime bytecode counts.
 */
export const placed: { address: Address; artifact: Artifact }[] = [
  { address: '0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003', artifact: BatchSettlement },
  { address: '0x4020806089470a89826cB9fB1f4059150b550004', artifact: Eip3009DepositCollector },
  { address: '0x4020425FAf3B746C082C2f942b4E5159887B0005', artifact: Permit2DepositCollector },
]

/** The real Multicall3. Creation bytecode. */
export const multicall3 = vendored.multicall3 as { bytecode: Hex }
