import type { Abi, Hex } from 'viem'
import generated from './artifacts.generated.json'
import vendored from './vendored.json'

/** A compiled contract: creation and runtime bytecode. */
export type Artifact = { abi: Abi; bytecode: Hex; deployedBytecode: Hex }

type Name =
  | 'Stablecoin'
  | 'ExactPermit2Proxy'
  | 'UptoPermit2Proxy'
  | 'SmartWallet'
  | 'GreedyWallet'
  | 'StockRegistry'
  | 'StockToken'
  | 'PriceFeed'
  | 'LiquidityProvider'

/** Contracts of this folder, compiled by build.ts. */
export const {
  Stablecoin,
  ExactPermit2Proxy,
  UptoPermit2Proxy,
  SmartWallet,
  GreedyWallet,
  StockRegistry,
  StockToken,
  PriceFeed,
  LiquidityProvider,
} = generated as unknown as Record<Name, Artifact>

/** The real Permit2. The salt gives it its canonical address. Creation bytecode. */
export const permit2 = vendored.permit2 as { salt: Hex; bytecode: Hex }

/** The real Multicall3. Creation bytecode. */
export const multicall3 = vendored.multicall3 as { bytecode: Hex }
