"""What tests share: real servers, databases and messages, and the applications that they run."""
