// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {Signatures} from "../../../src/demo/contracts/Signatures.sol";

/// @notice ERC-1271 wallet with one ECDSA owner. As an EIP-7702 delegate it has no owner in storage:
/// the account itself signs then.
contract SmartWallet {
    address private owner_;

    error NotOwner();

    constructor(address initialOwner) payable {
        owner_ = initialOwner;
    }

    receive() external payable {}

    function owner() public view returns (address) {
        return owner_ == address(0) ? address(this) : owner_;
    }

    function isValidSignature(bytes32 digest, bytes calldata signature) public view virtual returns (bytes4) {
        (address signer, Signatures.Fault fault) = Signatures.recover(digest, signature);
        bool valid = fault == Signatures.Fault.None && signer == owner();
        return valid ? Signatures.ERC1271_MAGIC : bytes4(0xffffffff);
    }

    function execute(address to, uint256 value, bytes calldata data) external returns (bytes memory) {
        if (msg.sender != owner()) revert NotOwner();
        (bool ok, bytes memory result) = to.call{value: value}(data);
        if (ok) return result;
        assembly ("memory-safe") {
            revert(add(result, 32), mload(result))
        }
    }
}

/// @notice The wallets of an attacker who wants the settler to pay for gas in vain.
contract GreedyWallet is SmartWallet {
    enum Mode {
        Honest,
        // Burns all gas it is given.
        Burn,
        // Valid in an eth_call without a gas price, invalid in a transaction.
        SimulationOnly,
        Refuse
    }

    Mode public mode;

    constructor(address initialOwner, Mode initialMode) payable SmartWallet(initialOwner) {
        mode = initialMode;
    }

    function setMode(Mode value) external {
        mode = value;
    }

    function isValidSignature(bytes32 digest, bytes calldata signature) public view override returns (bytes4) {
        if (mode == Mode.Burn) {
            while (true) {}
        }
        bool refused = mode == Mode.Refuse || (mode == Mode.SimulationOnly && tx.gasprice != 0);
        return refused ? bytes4(0xffffffff) : super.isValidSignature(digest, signature);
    }
}
