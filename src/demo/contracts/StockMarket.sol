// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

// The stocks' side of local chains. All configuration is storage, so that the runtime code can be
// placed at the real addresses; the switches are open to anybody.

/// @notice Stands in for the issuer's registry: who may not hold its tokens.
contract StockRegistry {
    mapping(address => bool) public isBlocked;

    function setBlocked(address account, bool value) external {
        isBlocked[account] = value;
    }
}

/// @notice Stands in for a tokenized stock: ERC-20 with 18 decimals, stopped by itself (tokenPaused) or
/// with all others (paused), closed to whom the registry blocks, and with the display multiplier of
/// ERC-8056, which never changes a balance.
contract StockToken {
    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);

    error AlreadyInitialized();
    error Paused();
    error Blocked(address account);
    error InsufficientBalance();
    error InsufficientAllowance();

    uint8 public constant decimals = 18;
    string public name;
    string public symbol;
    StockRegistry public registry;
    bool private everythingPaused;
    bool public tokenPaused;
    bool public oraclePaused;
    uint256 public uiMultiplier;
    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;

    function initialize(string calldata name_, string calldata symbol_, StockRegistry registry_) external {
        if (uiMultiplier != 0) revert AlreadyInitialized();
        name = name_;
        symbol = symbol_;
        registry = registry_;
        uiMultiplier = 1e18;
    }

    function setPaused(bool everything, bool token, bool oracle) external {
        everythingPaused = everything;
        tokenPaused = token;
        oraclePaused = oracle;
    }

    function setMultiplier(uint256 value) external {
        uiMultiplier = value;
    }

    function mint(address to, uint256 value) external {
        totalSupply += value;
        balanceOf[to] += value;
        emit Transfer(address(0), to, value);
    }

    function paused() public view returns (bool) {
        return everythingPaused || tokenPaused;
    }

    function approve(address spender, uint256 value) external returns (bool) {
        requireOpen(msg.sender, spender);
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    function transfer(address to, uint256 value) external returns (bool) {
        move(msg.sender, to, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value) external returns (bool) {
        uint256 allowed = allowance[from][msg.sender];
        if (allowed != type(uint256).max) {
            if (allowed < value) revert InsufficientAllowance();
            allowance[from][msg.sender] = allowed - value;
        }
        move(from, to, value);
        return true;
    }

    function move(address from, address to, uint256 value) private {
        requireOpen(from, to);
        if (balanceOf[from] < value) revert InsufficientBalance();
        balanceOf[from] -= value;
        balanceOf[to] += value;
        emit Transfer(from, to, value);
    }

    function requireOpen(address from, address to) private view {
        if (paused()) revert Paused();
        if (registry.isBlocked(from)) revert Blocked(from);
        if (registry.isBlocked(to)) revert Blocked(to);
    }
}

/// @notice Stands in for a Chainlink feed. An age of zero follows the chain's clock.
contract PriceFeed {
    uint8 public constant decimals = 8;
    int256 private answer;
    uint256 private ageSeconds;

    function set(int256 answer_, uint256 ageSeconds_) external {
        answer = answer_;
        ageSeconds = ageSeconds_;
    }

    function latestRoundData() external view returns (uint80, int256, uint256, uint256, uint80) {
        uint256 updatedAt = block.timestamp - ageSeconds;
        return (1, answer, updatedAt, updatedAt, 1);
    }
}

interface Mintable {
    function mint(address to, uint256 value) external;
}

interface Factory {
    function createPool(address tokenA, address tokenB, uint24 fee) external returns (Pool);
}

interface Pool {
    function initialize(uint160 sqrtPriceX96) external;
    function mint(address recipient, int24 lower, int24 upper, uint128 amount, bytes calldata data)
        external
        returns (uint256, uint256);
    function burn(int24 lower, int24 upper, uint128 amount) external returns (uint256, uint256);
    function collect(address recipient, int24 lower, int24 upper, uint128 most0, uint128 most1)
        external
        returns (uint128, uint128);
    function swap(address recipient, bool zeroForOne, int256 amount, uint160 limitX96, bytes calldata data)
        external
        returns (int256, int256);
    function token0() external view returns (address);
    function token1() external view returns (address);
}

/// @notice Provides the pools and moves their prices with tokens that it mints as they are asked for.
contract LiquidityProvider {
    /// @dev Tokens in the order of their addresses.
    function open(
        Factory factory,
        address token0,
        address token1,
        uint24 fee,
        uint160 sqrtPriceX96,
        int24 lower,
        int24 upper,
        uint128 liquidity
    ) external {
        Pool pool = factory.createPool(token0, token1, fee);
        pool.initialize(sqrtPriceX96);
        pool.mint(address(this), lower, upper, liquidity, "");
    }

    function provide(Pool pool, int24 lower, int24 upper, uint128 liquidity) external {
        pool.mint(address(this), lower, upper, liquidity, "");
    }

    function withdraw(Pool pool, int24 lower, int24 upper, uint128 liquidity) external {
        pool.burn(lower, upper, liquidity);
        pool.collect(address(this), lower, upper, type(uint128).max, type(uint128).max);
    }

    /// @dev Trades until the pool has this price.
    function move(Pool pool, bool zeroForOne, uint160 sqrtPriceX96) external {
        pool.swap(address(this), zeroForOne, type(int128).max, sqrtPriceX96, "");
    }

    function uniswapV3MintCallback(uint256 owed0, uint256 owed1, bytes calldata) external {
        Mintable(Pool(msg.sender).token0()).mint(msg.sender, owed0);
        Mintable(Pool(msg.sender).token1()).mint(msg.sender, owed1);
    }

    function uniswapV3SwapCallback(int256 owed0, int256 owed1, bytes calldata) external {
        if (owed0 > 0) Mintable(Pool(msg.sender).token0()).mint(msg.sender, uint256(owed0));
        if (owed1 > 0) Mintable(Pool(msg.sender).token1()).mint(msg.sender, uint256(owed1));
    }
}
